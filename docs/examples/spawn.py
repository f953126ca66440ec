"""A script that starts its own ranks, with torch.multiprocessing.spawn, and without a line of dptrace in it.

dptrace record docs/examples/spawn.py --ranks 2
"""

from __future__ import annotations

import argparse
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def train(rank: int, ranks: int, port: int, steps: int) -> None:
    """Train as one of the ranks: NCCL on GPUs, gloo on the CPU."""
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", str(port)
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo", rank=rank, world_size=ranks)
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")

    model = DistributedDataParallel(nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 512)).to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        batch = torch.randn(256, 512, device=device)
        (model(batch) - batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


def main() -> None:
    """Start the ranks, one per GPU unless ``--ranks`` says otherwise."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=torch.cuda.device_count() or 2)
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    mp.spawn(train, args=(options.ranks, port, options.steps), nprocs=options.ranks)


if __name__ == "__main__":
    main()
