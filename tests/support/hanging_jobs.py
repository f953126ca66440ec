"""Run jobs of three ranks that hang, each with a planted culprit, and write torch's flight recorder dumps of them.

``python hanging_jobs.py FOLDER VARIANT...`` forks the ranks of each variant; the dumps go to FOLDER/VARIANT.
``--nccl`` before them runs the ranks on one GPU, over NCCL, instead of gloo on the CPU.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING or __name__ == "__main__":  # who reads the list of jobs needs no torch
    import torch
    import torch._dynamo  # or each rank would load it
    import torch.distributed as dist

RANKS = 3
ON_GPU = "--nccl" in sys.argv
GROUP: Any = None
"""A second group of all ranks."""


def _sleep() -> None:
    time.sleep(60)


VARIANTS: dict[str, tuple[set[str], Callable[[], object] | None]] = {
    "sleeps": ({"missing"}, _sleep),
    "dies": ({"no dump"}, lambda: os._exit(1)),
    "operator": ({"operator"}, lambda: dist.all_gather([torch.ones(4) for _ in range(RANKS)], torch.ones(4))),
    "sizes": ({"sizes"}, None),
    "dtypes": ({"dtypes"}, None),
    "order": ({"order"}, lambda: (dist.broadcast(torch.ones(8), 0), dist.all_reduce(torch.ones(4)))),
    "leaves_one_out": ({"order"}, lambda: (dist.broadcast(torch.ones(8), 0), dist.all_reduce(torch.ones(2, 6)))),
    "other_group": ({"group"}, lambda: dist.all_reduce(torch.ones(4), group=GROUP)),
    "sleeps_before_a_pair": ({"missing"}, _sleep),
    "ends_its_loop_early": ({"operator"}, lambda: dist.barrier()),
}
"""The kind of fault that dptrace should name, and what the culprit alone does after two steps that all ranks took."""


def culprit_of(variant: str) -> int:
    """Return the rank that is the cause; each rank has its turn."""
    return [*VARIANTS].index(variant) % RANKS


def step() -> None:
    """Take a step that all ranks take alike."""
    dist.all_reduce(torch.ones(4))
    dist.broadcast(torch.ones(8), 0)
    dist.all_reduce(torch.ones(2, 6))


def train(variant: str, rank: int, folder: Path) -> None:
    """Hang in a way of the variant."""
    global GROUP
    culprit, alone = culprit_of(variant), VARIANTS[variant][1]
    place, own = (rank - culprit) % RANKS, rank == culprit
    pair = dist.new_group(sorted({culprit, (culprit + 1) % RANKS}), group_desc="pair")
    GROUP = dist.new_group(range(RANKS), group_desc="other")
    dist.all_reduce(torch.ones(1), group=GROUP)
    if place < 2:
        dist.all_reduce(torch.ones(1), group=pair)
    for _ in range(2):
        step()
    if ON_GPU:
        torch.cuda.synchronize()
        time.sleep(1)  # until torch's watchdog has seen that they are over
    threading.Thread(target=watch, args=(variant, rank, folder), daemon=True).start()
    if own and alone is not None:
        alone()
    if variant == "sleeps_before_a_pair" and place < 2:
        dist.all_reduce(torch.ones(5), group=pair)
    if variant in ("sizes", "dtypes"):
        begin_in_turn(variant, rank, place, folder)
    if variant == "sleeps_before_a_pair" and ON_GPU:
        torch.cuda.synchronize()
    for _ in range(2):
        step()


def begin_in_turn(variant: str, rank: int, place: int, folder: Path) -> None:
    """Begin an all-reduce in which the culprit, the last to begin, has more bytes.

    gloo ends ranks that receive more than they expect, where NCCL would hang: so each dumps before the next one begins.
    gloo's threads mark a call as over a moment after the script goes on: a dump of that moment has it open.
    """
    order = [1, 2, 0].index(place)
    while not ON_GPU and not all(entry["retired"] for entry in pickle.loads(recorded())["entries"]):
        time.sleep(0.01)
    while not ON_GPU and len([*folder.glob("nccl_trace_rank_*")]) < order:
        time.sleep(0.01)
    wrong = place == 0
    numbers = torch.ones(9 if wrong and variant == "sizes" else 4)
    work = dist.all_reduce(numbers.double() if wrong and variant == "dtypes" else numbers, async_op=True)
    if not ON_GPU:
        dump(rank, folder)
    assert work is not None
    work.wait()


def dump(rank: int, folder: Path) -> None:
    """Write what a watchdog writes."""
    written = folder / f"part_of_{rank}.tmp"
    written.write_bytes(recorded())
    written.rename(folder / f"nccl_trace_rank_{rank}")


def recorded() -> bytes:
    """Return what torch's flight recorder holds."""
    library: Any = torch._C._distributed_c10d
    content: bytes = library._dump_nccl_trace() if ON_GPU else library._dump_fr_trace()
    return content


def watch(variant: str, rank: int, folder: Path) -> None:
    """Dump after a second without an end; end when all have: a closed connection is no hang."""
    time.sleep(4 if ON_GPU else 1)
    if ON_GPU or variant not in ("sizes", "dtypes"):
        dump(rank, folder)
    expected, deadline = RANKS - (variant == "dies"), time.monotonic() + 30
    while len([*folder.glob("nccl_trace_rank_*")]) < expected and time.monotonic() < deadline:
        time.sleep(0.05)
    os._exit(0)


def share_one_gpu(rank: int) -> None:
    """Let NCCL take the ranks for ranks of different machines, or it would refuse that they share a GPU."""
    os.environ.update(NCCL_HOSTID=f"rank{rank}", NCCL_SOCKET_IFNAME="lo", TORCH_NCCL_ASYNC_ERROR_HANDLING="0")
    torch.cuda.set_device(0)
    torch.set_default_device("cuda")


def main(folder: Path, variant: str) -> None:
    """Run the ranks of a variant."""
    folder.mkdir()
    ranks = []
    for rank in range(RANKS):
        ranks.append(os.fork())
        if not ranks[-1]:
            limit, store = timedelta(seconds=60), f"file://{folder}/store.tmp"
            if ON_GPU:
                share_one_gpu(rank)
            dist.init_process_group("nccl" if ON_GPU else "gloo", store, limit, rank=rank, world_size=RANKS)
            with suppress(RuntimeError):  # a peer is gone
                train(variant, rank, folder)
            time.sleep(60)
    for process in ranks:
        os.waitpid(process, 0)


if __name__ == "__main__":
    into, *names = [word for word in sys.argv[1:] if word != "--nccl"]
    at_once = 1 if ON_GPU else 3
    for first in range(0, len(names), at_once):
        jobs = []
        for name in names[first : first + at_once]:
            jobs.append(os.fork())
            if not jobs[-1]:
                main(Path(into) / name, name)
                os._exit(0)
        for job in jobs:
            os.waitpid(job, 0)
