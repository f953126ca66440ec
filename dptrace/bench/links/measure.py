"""Time collectives on every rank; torchrun starts this module for ``dptrace links``.

Sizes and collectives are interleaved: each round times all of them, three times or more and in a new random order,
until the time is up. So other load on the machine affects all sizes alike. The shortest of three timings counts, and
the median over the rounds is robust against short disturbances.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from dptrace.bench.links.algorithms import check_sums
from dptrace.bench.links.operations import ELEMENT_BYTES, Operations, largest_message
from dptrace.bench.links.topology import describe_machine
from dptrace.errors import RecordingError
from dptrace.model.link_report import ADDITION, ALGORITHM_PREFIX
from dptrace.record.profiler.aligned_profile import Stopwatch
from dptrace.record.ranks.accelerator import accelerator_of, backend_of
from dptrace.record.ranks.distributed import World, process_group
from dptrace.record.ranks.environment import device_name, versions
from dptrace.record.run_folder import messages

__all__ = ["MEASURED", "main", "sizes_between"]

MEASURED = "measured.json"
_FEWEST_ROUNDS, _WANTED_ROUNDS, _MOST_ROUNDS = 3, 12, 200
_BEST_OF = 3
"""Number of timings of which the shortest counts: on shared cores, most calls may wait for another process."""
_TIMING_S, _MOST_CALLS = 2e-3, 20
"""Target length of a timing on a GPU: shorter calls are repeated within it, since launches and events have a cost of
their own. On a CPU each timing is one call: within two milliseconds, other processes mostly get a time slice."""
_SHORT_S, _TIMINGS_IF_SHORT = 2e-3, 3
"""Timings shorter than this give three values per round, others one."""
_WARMUP_BUDGET_SHARE = 0.45
"""Share of the time for the largest size of each collective; all smaller sizes together take about as long."""


@dataclass
class Measurement:
    """One collective at one size."""

    kind: str
    size: int
    call: Callable[[], object]
    calls: int = 1
    """Number of calls per timing."""
    timings_per_round: int = 1
    """Values per round, each the shortest of three timings."""
    seconds: list[float] = field(default_factory=list)
    """Time of one call on this rank, one entry per timing."""


def sizes_between(least: int, max_bytes: int, unit: int) -> list[int]:
    """Return *least* and its doublings up to *max_bytes*, each rounded down to multiples of *unit*.

    >>> sizes_between(1024, 5000, 12)
    [1020, 2040, 4092]
    """
    doublings = range((max_bytes // least).bit_length())
    return [(least << k) // unit * unit for k in doublings]


def main() -> None:
    """Measure as the first argument says: JSON of a ``LinksRequest``."""
    request = json.loads(sys.argv[1])
    assignment = messages.LauncherSettings.from_environment()
    assert assignment is not None, "only dptrace links starts this module"
    folder = Path(assignment.folder)
    with process_group() as world:
        if world.size < 2:
            raise RecordingError("one rank has no link to measure. Start two or more.")
        max_bytes = largest_message(world, request["min_bytes"], request["max_bytes"])
        check_sums(request["algorithms"], world, _ranks_per_node(request, world))
        bench = _LinkBenchmark(world, request, max_bytes, folder / "progress")
        bench.choose()
        bench.measure()
        times = bench.results()
        machines: list[Any] = [None] * world.size
        dist.all_gather_object(machines, _rank_info(world))
        if world.rank == 0:
            messages.write_json(folder / MEASURED, times | _environment(world, machines))


class _LinkBenchmark:
    """The measurement on one rank; all ranks take the same decisions, those of rank 0."""

    def __init__(self, world: World, request: dict[str, Any], max_bytes: int, progress: Path) -> None:
        self.world, self.request, self.max_bytes = world, request, max_bytes
        self.items: list[Measurement] = []
        self.notes: list[str] = []
        self._progress = progress
        self._begun = time.monotonic()
        self._exchanges = Operations(world, max_bytes, _ranks_per_node(request, world))
        self._rounds = 0
        self._accelerator = accelerator_of(world.device)
        if max_bytes < request["max_bytes"] // 2:
            self.notes.append(f"Messages above {max_bytes:,} bytes were skipped: there is not enough memory for them.")

    def choose(self) -> None:
        """Try each collective from its smallest size up, as far as the time allows; this also warms them up."""
        kinds, stopped = _kinds(self.request), list[str]()
        most_s = _WARMUP_BUDGET_SHARE * self.request["budget_s"] / len(kinds) / ((_WANTED_ROUNDS + 1) * _BEST_OF)
        for number, kind in enumerate(kinds):
            for size in sizes_between(self.request["min_bytes"], self.max_bytes, ELEMENT_BYTES * self.world.size):
                item = Measurement(kind, size, self._exchanges.call(kind, size))
                try:
                    self._time(item)
                except (RuntimeError, NotImplementedError) as error:
                    if "support" not in str(error):
                        raise
                    self.notes.append(f"{kind} was skipped: {messages.error_text(error).splitlines()[0]}")
                    break
                took = self._same_on_all_ranks(self._time(item))
                if 2 * took > most_s:
                    # A single call that waited for a core must not exclude the larger sizes.
                    took = min(took, *(self._same_on_all_ranks(self._time(item)) for _ in range(_BEST_OF - 1)))
                if self._accelerator is not None:
                    item.calls = max(1, min(_MOST_CALLS, round(_TIMING_S / took)))
                item.timings_per_round = _TIMINGS_IF_SHORT if took * item.calls < _SHORT_S else 1
                self.items.append(item)
                if 2 * took > most_s and size * 2 <= self.max_bytes:
                    stopped.append(f"{kind} at {size:,} bytes")
                    break
            self._write_progress(0.1 * (number + 1) / len(kinds))
        if stopped:
            self.notes.append(
                f"Larger messages take longer than --budget allows; the largest measured: {', '.join(stopped)}."
            )

    def measure(self) -> None:
        """Run rounds until the time is up."""
        order = random.Random(0)
        # A round that does not count: the first call grows buffers and opens connections.
        self._round(order, keep=False)
        while True:
            began = time.monotonic()
            self._round(order, keep=True)
            self._rounds += 1
            now = time.monotonic()
            spent = now - self._begun
            self._write_progress(max(0.1, spent / self.request["budget_s"]))
            continues = self._rounds < _MOST_ROUNDS and spent + (now - began) < self.request["budget_s"]
            if not self._same_on_all_ranks(float(continues or self._rounds < _FEWEST_ROUNDS), of_first=True):
                return

    def results(self) -> dict[str, Any]:
        """Return all times: the longest of the ranks for each timing, then the shortest of three timings."""
        counts = [len(item.seconds) // _BEST_OF for item in self.items]
        flat = [value for item in self.items for value in item.seconds]
        all_ranks = torch.tensor(flat, dtype=torch.float64, device=self.world.device)
        dist.all_reduce(all_ranks, op=dist.ReduceOp.MAX)
        values = iter(all_ranks.tolist())

        def best(values: Iterator[float]) -> float:
            return min(islice(values, _BEST_OF))

        samples = [
            {
                "collective": item.kind,
                "bytes": item.size,
                "calls": item.calls,
                "seconds": [best(values) for _ in range(n)],
            }
            for item, n in zip(self.items, counts, strict=True)
        ]
        spent = round(time.monotonic() - self._begun, 1)
        timed = {"samples": samples, "rounds": self._rounds, "seconds": spent, "notes": self.notes}
        of_nodes = {"ranks_per_node": _ranks_per_node(self.request, self.world)} if self.request["algorithms"] else {}
        return timed | of_nodes

    def _round(self, order: random.Random, keep: bool) -> None:
        # All ranks have the same order: their generators have the same seed and state.
        places = [
            i for i, item in enumerate(self.items) for _ in range(item.timings_per_round * _BEST_OF if keep else 1)
        ]
        order.shuffle(places)
        for place in places:
            item = self.items[place]
            took = self._time(item)
            if keep:
                item.seconds.append(took)

    def _time(self, item: Measurement) -> float:
        """Time calls from the moment all ranks are ready; return seconds per call, or per message for round trips."""
        stopwatch = Stopwatch(self.world.device)
        if self._accelerator is not None:
            self._accelerator.module.synchronize()
        dist.barrier()
        stopwatch.begin()
        for _ in range(item.calls):
            item.call()
        lap = stopwatch.end()  # on a GPU, the calls have by then made this stream wait for the backend's
        (duration_ns,) = stopwatch.durations_ns([lap])
        return duration_ns / 1e9 / item.calls / (2 if item.kind == "send_recv" else 1)

    def _same_on_all_ranks(self, value: float, of_first: bool = False) -> float:
        """Return the same value on all ranks: the largest, or that of rank 0."""
        shared = torch.tensor([value], dtype=torch.float64, device=self.world.device)
        if of_first:
            dist.broadcast(shared, src=0)
        else:
            dist.all_reduce(shared, op=dist.ReduceOp.MAX)
        return float(shared.item())

    def _write_progress(self, share: float) -> None:
        if self.world.rank == 0:
            self._progress.write_text(f"{round(100 * min(share, 1))} 100")


def _kinds(request: dict[str, Any]) -> list[str]:
    """Return the kinds to time: collectives, algorithms, and for these the addition of two tensors."""
    algorithms = [ALGORITHM_PREFIX + name for name in request["algorithms"]]
    return [*request["collectives"], *algorithms, *([ADDITION] if algorithms else [])]


def _ranks_per_node(request: dict[str, Any], world: World) -> int:
    """Return the asked ranks of a node; by default those of a machine, or half of all if there is one machine."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world.size))
    asked: int | None = request["ranks_per_node"]
    return asked or (local if local < world.size else -(-world.size // 2))


def _rank_info(world: World) -> dict[str, Any]:
    """Describe this rank; the first rank of a machine also describes the machine."""
    node = int(os.environ.get("GROUP_RANK", "0"))
    gpu = None if accelerator_of(world.device) is None else device_name(world.device)
    machine = describe_machine(node) if messages.local_rank() == 0 else None
    return {"rank": world.rank, "node": node, "gpu": gpu, "machine": machine}


def _environment(world: World, machines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    found = versions()
    return {
        "backend": backend_of(world.device),
        "ranks": world.size,
        "nodes": len({one["node"] for one in machines}),
        "versions": {name: found[name] for name in ("torch", "nccl")},
        "gpus": [one["gpu"] for one in machines],
        "machines": [one["machine"] for one in machines if one["machine"]],
    }


if __name__ == "__main__":
    main()
