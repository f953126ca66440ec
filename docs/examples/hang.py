"""Hang as jobs do: a rank waits for its data, the others for it. torchrun --nproc-per-node 3 docs/examples/hang.py"""

import os
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist


def dump_after(seconds: float, folder: Path) -> None:
    """Do for gloo what torch's watchdog does for NCCL when a collective times out."""
    time.sleep(seconds)
    folder.mkdir(exist_ok=True)
    (folder / f"trace_rank_{dist.get_rank()}").write_bytes(torch._C._distributed_c10d._dump_fr_trace())
    time.sleep(5)  # until the others have dumped, too
    os._exit(1)


def load_batch(number: int) -> torch.Tensor:
    if number == 5 and dist.get_rank() == 2:
        time.sleep(600)  # a file system that does not answer
    return torch.randn(8, 64)


dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
model(load_batch(0)).sum().backward()
threading.Thread(target=dump_after, args=(10, Path("dumps")), daemon=True).start()
for number in range(1, 100):
    model(load_batch(number)).sum().backward()
