"""Train a small model with DDP on two CPUs; from step 150 on, rank 1 reads its samples from a slow disk."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

STEPS, BATCH = 400, 4


class Samples(Dataset[Any]):
    """Samples; a sample of rank 1 takes longer once its cache is full."""

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> Any:
        time.sleep(0.001)
        if dist.get_rank() == 1 and index >= 150 * BATCH:
            time.sleep(0.008)  # the disk
        return torch.full((64,), float(index % 7))


def main() -> None:
    """Train."""
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for batch in DataLoader(Samples(), batch_size=BATCH):
        model(batch).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
