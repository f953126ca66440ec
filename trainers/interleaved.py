"""Data parallelism, overlapped: each parameter's all-reduce starts as soon as its gradient is there.

Backward goes from the last layer to the first. While the gradients of one layer travel, those of the layer before
it are computed; only what is still on its way after backward is waited for.

    dptrace record --mode interleaved --gpus 4
    torchrun --nproc-per-node 4 interleaved.py --steps 4
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

from dptrace.record import Options, World, assert_in_sync, parse_options, phase, process_group, record, save_parameters
from dptrace.trainers import mlp


def train(options: Options, world: World) -> None:
    model = mlp.build(options, world)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)

    pending: list[dist.Work] = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda p: pending.append(dist.all_reduce(p.grad, async_op=True)))

    with record(model=model, **options.recording) as recording:
        for x, y in mlp.batches(options, world, recording.total_steps):
            with phase("forward"):
                loss = cross_entropy(model(x), y)

            with phase("backward"):
                (loss / world.size).backward()  # so that the sum over ranks is the average

            while pending:
                pending.pop().wait()

            with phase("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
            recording.step(loss)

        assert_in_sync(model)
    save_parameters(model, options.save_parameters)


if __name__ == "__main__":
    options = parse_options(__doc__)
    with process_group() as world:
        train(options, world)
