"""Run jobs of eight ranks (tensor × pipeline × data parallel) that hang, each with a planted culprit, over gloo.

``python hanging_meshes.py FOLDER [VARIANT...]`` forks the ranks of each variant; the dumps of torch's flight recorder
go to FOLDER/VARIANT. Rank = 4·stage + 2·replica + part. tests/flight/meshes_gloo.zip holds what it wrote.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

RANKS, STEPS = 8, 3
GROUPS: dict[str, Any] = {}
"""The groups of this rank."""


class Plant(NamedTuple):
    """What culprits do at a point of the third step, and what dptrace should say."""

    point: str
    """``load``, ``tp``, ``pp``, ``back``, ``dp``, ``norm`` or ``loss``: before it, or in its place."""
    culprits: tuple[int, ...]
    kinds: set[str]
    act: Callable[[], object]
    replaces: bool = False
    named: tuple[int, ...] | None = None
    """Who can be named, where dumps don't tell the culprit from others: both of two."""
    sends: bool = False
    """Whether the pipeline uses send and receive, which gloo does not record."""


def _sleep() -> None:
    time.sleep(90)


def _spin() -> None:
    while True:
        torch.ones(10).sum()


def _raise() -> None:
    raise ValueError("a bad sample")


def _all_reduce(elements: int, group: str = "", dtype: torch.dtype = torch.float32) -> None:
    dist.all_reduce(torch.ones(elements, dtype=dtype), group=GROUPS[group] if group else None)


def _swapped() -> None:
    dist.broadcast(torch.ones(2), 0)
    _all_reduce(1)


def _to_the_next_step() -> None:
    _all_reduce(4, "tp")


PLANTS = {
    "loader_of_stage_0": Plant("load", (2,), {"missing"}, _sleep),
    "loader_of_stage_1": Plant("load", (5,), {"missing"}, _sleep),
    "loader_of_the_last_rank": Plant("load", (7,), {"missing"}, _sleep),
    "two_loaders": Plant("load", (0, 6), {"missing"}, _sleep),
    "forward_stands": Plant("pp", (1,), {"missing"}, _sleep),
    "backward_stands": Plant("back", (4,), {"missing"}, _spin),
    "writes_a_checkpoint": Plant("norm", (0,), {"missing"}, _sleep),
    "hook_stands": Plant("dp", (3,), {"missing"}, _sleep),
    "dies_in_its_loader": Plant("load", (3,), {"no dump"}, lambda: os._exit(1)),
    "is_killed_in_backward": Plant("dp", (6,), {"no dump"}, lambda: os.kill(os.getpid(), signal.SIGKILL)),
    "raises_in_its_loader": Plant("load", (1,), {"no dump"}, _raise),
    "is_stopped": Plant("norm", (4,), {"no dump"}, lambda: os.kill(os.getpid(), signal.SIGSTOP)),
    "skips_the_pipeline": Plant("pipeline", (6,), {"group"}, lambda: None, replaces=True),
    "skips_backward_of_the_pipeline": Plant("back", (2,), {"group"}, lambda: None, replaces=True),
    "ends_its_loop_early": Plant("load", (3,), {"group"}, dist.barrier),
    "logs_alone": Plant("load", (1,), {"group"}, lambda: _all_reduce(3)),
    "leaves_the_norm_out": Plant("end", (4,), {"group"}, _to_the_next_step, replaces=True),
    "another_operator": Plant("norm", (5,), {"operator"}, dist.barrier, replaces=True),
    "another_size": Plant("norm", (7,), {"sizes"}, lambda: _all_reduce(9), replaces=True),
    "another_dtype": Plant("norm", (2,), {"dtypes"}, lambda: _all_reduce(1, dtype=torch.float64), replaces=True),
    "other_sizes_of_two": Plant("dp", (5,), {"sizes"}, lambda: _all_reduce(9, "dp"), replaces=True, named=(5, 7)),
    "another_order": Plant("end", (6,), {"order"}, _swapped, replaces=True),
    "circle": Plant("load", (0, 3), {"group"}, lambda: _all_reduce(8, "dp")),
    "loader_before_a_send": Plant("load", (0,), {"missing"}, _sleep, named=(0, 4, 5), sends=True),
}
"""By the name of the variant. With sends, those who wait in a receive can't be told from those who never came."""
IN_TURN = {"another_operator", "another_size", "another_dtype", "other_sizes_of_two", "another_order"}
"""Variants in which gloo ends ranks where NCCL hangs: the culprit comes last, and each dumps before it does."""


def main(folder: Path, variant: str) -> None:
    """Run the ranks of a variant; the dumps are there when it returns."""
    folder.mkdir(parents=True)
    plant, ranks = PLANTS[variant], []
    for rank in range(RANKS):
        ranks.append(os.fork())
        if not ranks[-1]:
            dist.init_process_group(
                "gloo", f"file://{folder}/store.tmp", timedelta(seconds=60), rank=rank, world_size=RANKS
            )
            with suppress(RuntimeError):  # a peer is gone
                try:
                    train(variant, plant, rank, folder)
                except ValueError:
                    os._exit(1)
            time.sleep(60)
    while len([*folder.glob("nccl_trace_rank_*")]) < expected(plant):
        time.sleep(0.05)
    for process in ranks:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)


def expected(plant: Plant) -> int:
    """Return how many ranks leave a dump."""
    return RANKS - len(plant.culprits) * (plant.kinds == {"no dump"})


def train(variant: str, plant: Plant, rank: int, folder: Path) -> None:
    """Take two steps that all ranks take alike, and one with the plant."""
    stage, replica, part = rank // 4, rank // 2 % 2, rank % 2
    layout = {
        "tp": [[first, first + 1] for first in range(0, RANKS, 2)],
        "dp": [[4 * s + p, 4 * s + p + 2] for s in range(2) for p in range(2)],
        "pp": [[first, first + 4] for first in range(4)],
    }
    for name, groups in layout.items():
        for ranks in groups:
            group = dist.new_group(ranks, group_desc=name)
            if rank in ranks:
                GROUPS[name] = group
    assert [rank] == [4 * stage + 2 * replica + part]
    for number in range(STEPS):
        last = number == STEPS - 1
        if last:
            dist.barrier()
            threading.Thread(target=watch, args=(variant, rank, folder), daemon=True).start()
        step(stage, rank, plant if last and rank in plant.culprits else None, variant, folder, plant.sends)


def step(stage: int, rank: int, plant: Plant | None, variant: str, folder: Path, sends: bool) -> None:
    """Load, compute forward and backward over two stages, reduce gradients, their norm, and the loss."""

    def at(point: str, usual: Callable[[], object] = lambda: None) -> None:
        if plant is None or point != plant.point:
            usual()
            return
        if variant in IN_TURN:
            wait_for_the_others(rank, folder)
        plant.act()
        if not plant.replaces:
            usual()

    def pipeline() -> None:
        at("pp", lambda: message(stage, rank, 0, 6, sends))
        if stage:
            _all_reduce(4, "tp")
        at("back", lambda: message(stage, rank, 1, 5, sends))

    def end() -> None:
        at("norm", lambda: _all_reduce(1))
        at("loss", lambda: dist.broadcast(torch.ones(2), 0))

    at("load")
    at("tp", lambda: _all_reduce(4, "tp"))
    at("pipeline", pipeline)
    at("dp", lambda: _all_reduce(8, "dp"))
    at("end", end)


def message(stage: int, rank: int, source: int, elements: int, sends: bool) -> None:
    """Send from one stage to the other: as a broadcast in a group of two, or as a send and a receive."""
    first, other = (rank - 4, rank) if stage else (rank, rank + 4)
    if not sends:
        dist.broadcast(torch.ones(elements), (first, other)[source], group=GROUPS["pp"])
    elif stage == source:
        dist.send(torch.ones(elements), first if stage else other)
    else:
        dist.recv(torch.ones(elements), first if stage else other)


def wait_for_the_others(rank: int, folder: Path) -> None:
    """Wait until the others have dumped, then dump a moment after the wrong call has begun."""
    while len([*folder.glob("nccl_trace_rank_*")]) < RANKS - 1:
        time.sleep(0.02)
    threading.Timer(0.3, dump, (rank, folder)).start()


def dump(rank: int, folder: Path) -> None:
    """Write what a watchdog writes."""
    library: Any = torch._C._distributed_c10d
    written = folder / f"part_of_{rank}.tmp"
    written.write_bytes(library._dump_fr_trace())
    written.rename(folder / f"nccl_trace_rank_{rank}")


def watch(variant: str, rank: int, folder: Path) -> None:
    """Dump after a while without an end, and stay until all have: a closed connection is no hang."""
    time.sleep(float(os.environ.get("HANG_SECONDS", "3")))
    if variant not in IN_TURN or rank not in PLANTS[variant].culprits:
        dump(rank, folder)


if __name__ == "__main__":
    import torch._dynamo  # or each rank would load it

    into, *names = sys.argv[1:]
    for name in names or PLANTS:
        main(Path(into).resolve() / name, name)
