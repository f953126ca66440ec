"""A DDP training of an MLP whose ranks can sleep in forward: the sleep is an operator, ``bench::sleep``.

    dptrace record --gpus 2 --steps 12 --stop benchmarks/whatif_script.py --sleep-ms 0 20

sleeps for 20 ms in each step on rank 1.
"""

from __future__ import annotations

import argparse
import os
import time

import torch
from torch import Tensor, nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel


@torch.library.custom_op("bench::sleep", mutates_args=())
def sleep(x: Tensor, seconds: float) -> Tensor:
    """Return a copy of *x* after some time."""
    time.sleep(seconds)
    return x.clone()


class Sleep(torch.autograd.Function):
    """The operator in forward; nothing in backward."""

    @staticmethod
    def forward(context: object, x: Tensor, seconds: float) -> Tensor:
        return torch.ops.bench.sleep(x, seconds)

    @staticmethod
    def backward(context: object, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class Model(nn.Module):
    """Blocks of two linear layers around a sleep."""

    def __init__(self, width: int, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(8))

    def forward(self, x: Tensor) -> Tensor:
        for number, layer in enumerate(self.layers):
            x = torch.relu(layer(x))
            if number == len(self.layers) // 2:
                x = Sleep.apply(x, self.seconds)
        return x


def main() -> None:
    """Train until the recording ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sleep-ms", type=float, nargs="+", default=[0.0], help="For each rank, or for all.")
    parser.add_argument("--steps", type=int, default=60)
    given = parser.parse_args()
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    sleeps = given.sleep_ms * (world_size if len(given.sleep_ms) == 1 else 1)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    init_process_group("gloo")
    model = DistributedDataParallel(Model(1024, sleeps[rank] / 1000))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = torch.randn(256, 1024)
    for _ in range(given.steps):
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
    destroy_process_group()


if __name__ == "__main__":
    main()
