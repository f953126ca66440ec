"""Time collectives on every rank; torchrun starts this module for ``dptrace links``.

Sizes and collectives are interleaved: each round times all of them, three times or more and in a new random order,
until the time is up. So other load on the machine affects all sizes alike. The shortest of three timings counts, and
the median over the rounds is robust against short disturbances.
"""

from __future__ import annotations

import os
import platform
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from dptrace.bench.links import MEASURED, LinksRequest
from dptrace.core.subprocess_pool import available_cores, available_memory, command_output
from dptrace.errors import RecordingError
from dptrace.model.link_report import ADDITION, ALGORITHM_PREFIX
from dptrace.record import messages
from dptrace.record.accelerator import accelerator_of, backend_of
from dptrace.record.distributed import World, device_name, process_group, versions
from dptrace.record.profiler import Stopwatch
from dptrace.simulate.collectives import plan_of
from dptrace.trainers.parts.collectives import Messages, swap

# All-reduce algorithms written with send and receive, as calls to be timed, and the check that they add up right.


_LENGTHS = (1, 1000, 4099)
"""Elements of the tensors that are checked: fewer than ranks, and numbers that do not divide."""


Swap = Callable[[Messages, Messages], None]
"""Send the first messages while receiving the second, and return when all of them have arrived."""


def all_reduce_call(
    name: str, rank: int, ranks: int, ranks_per_node: int, tensor: Tensor, buffer: Tensor, swap: Swap = swap
) -> Callable[[], object]:
    """Return a call that replaces a tensor by its sum over the ranks, by the steps that ``dptrace explain`` shows.

    Args:
        name: of ``dptrace.model.collectives.ALL_REDUCES``.
        buffer: as long as the tensor; it is overwritten.
    """
    plan = plan_of(name, ranks, ranks_per_node)
    edges = [0, *accumulate(len(chunk) for chunk in tensor.tensor_split(plan.columns))]
    steps: list[tuple[Messages, Messages, Messages]] = []
    for transfers in plan.transfers:
        sent, kept, added = list[tuple[Tensor, int]](), list[tuple[Tensor, int]](), list[tuple[Tensor, int]]()
        for one in transfers:
            chunks = tensor[edges[one.columns[0]] : edges[one.columns[-1] + 1]]
            if one.source == rank:
                sent.append((chunks, one.target))
            elif one.target == rank:
                (added if one.adds else kept).append((chunks, one.source))
        if sent or kept or added:
            steps.append((sent, kept, added))

    def run() -> None:
        for sent, kept, added in steps:
            # There is one buffer, so that a rank that adds several messages receives them one after the other.
            swap(sent, [*kept, *((buffer[: len(chunks)], peer) for chunks, peer in added[:1])])
            for number, (chunks, peer) in enumerate(added):
                arriving = buffer[: len(chunks)]
                if number:
                    swap([], [(arriving, peer)])
                chunks += arriving

    return run


def check_sums(names: Sequence[str], world: World, ranks_per_node: int) -> None:
    """Run each algorithm on known numbers before it is timed.

    Raises:
        RecordingError: this rank did not end with the sum.
    """
    for name in names:
        for length in _LENGTHS:
            # Whole numbers, so that the sum is exact in any order.
            place = torch.arange(length, dtype=torch.float32, device=world.device) % 1009
            expected = place * (world.size * (world.size + 1) // 2)
            tensor = place * (world.rank + 1)
            all_reduce_call(name, world.rank, world.size, ranks_per_node, tensor, torch.empty_like(tensor))()
            if not torch.equal(expected, tensor):
                wrong = int((expected != tensor).sum())
                raise RecordingError(
                    f"the {name} all-reduce among {world.size} ranks gave {wrong} of {length} wrong sums on rank "
                    f"{world.rank}; nothing was timed. Leave {name} out of --algorithms, and report this."
                )


# The measured collectives, as calls on preallocated buffers for messages of any size.


# torch 2.13 renames them, and its older names issue a warning at each call, which would be timed.
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_BUFFERS = 3
"""Tensors of the largest size that a rank may hold: sent, received, and a copy that the backend makes."""
_FREE_MEMORY_SHARE = 0.5
"""Share of the free memory that these may take together."""
ELEMENT_BYTES = 4
"""Bytes of float32, the type of nccl-tests."""


def largest_message(world: World, min_bytes: int, max_bytes: int) -> int:
    """Return the largest size, up to *max_bytes*, for which every rank has memory.

    Raises:
        RecordingError: not even *min_bytes* fits.
    """
    accelerator = accelerator_of(world.device)
    sharing = int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if accelerator is None else 1
    free = available_memory() if accelerator is None else accelerator.module.mem_get_info(world.device)[0]
    fits = torch.tensor(int(free * _FREE_MEMORY_SHARE / _BUFFERS / sharing), dtype=torch.int64, device=world.device)
    dist.all_reduce(fits, op=dist.ReduceOp.MIN)
    if fits.item() < min_bytes:
        raise RecordingError(
            f"too little memory: messages of {min_bytes:,} bytes need {min_bytes * _BUFFERS * sharing:,} bytes, and at "
            f"most {int(fits.item()) * _BUFFERS * sharing:,} are available. Choose a smaller --min-bytes."
        )
    return min(max_bytes, int(fits.item()))


class Operations:
    """Calls that move messages of one size among all ranks.

    Args:
        ranks_per_node: for the hierarchical all-reduce.
    """

    def __init__(self, world: World, max_bytes: int, ranks_per_node: int = 1) -> None:
        self.world, self._ranks_per_node = world, ranks_per_node
        count = -(-max_bytes // ELEMENT_BYTES)
        # Filled, since memory never written to is one page of zeros that stays in the cache. Sums of zeros stay zero.
        self._sent = torch.empty(count, device=world.device).fill_(0)
        self._received = torch.empty(count, device=world.device).fill_(0)

    def call(self, kind: str, size: int) -> Callable[[], object]:
        """Return a call that runs one collective.

        Args:
            kind: a key of ``collectives.COUNTED``, which defines what *size* counts; or an algorithm of an all-reduce,
                such as ``all_reduce/tree``; or ``add``, which adds two tensors of *size* without communication.
            size: bytes; a whole number of elements for each rank.
        """
        ranks = self.world.size
        count = size // ELEMENT_BYTES
        sent, received, part = self._sent[:count], self._received[:count], count // ranks
        if kind.startswith(ALGORITHM_PREFIX):
            name = kind.removeprefix(ALGORITHM_PREFIX)
            return all_reduce_call(name, self.world.rank, ranks, self._ranks_per_node, sent, received)
        first = self.world.rank == 0
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": lambda: dist.all_reduce(sent),
            "all_gather": lambda: _ALL_GATHER(received, sent[:part]),
            "reduce_scatter": lambda: _REDUCE_SCATTER(received[:part], sent),
            "all_to_all": lambda: dist.all_to_all_single(received, sent),
            "broadcast": lambda: dist.broadcast(sent, src=0),
            "reduce": lambda: dist.reduce(sent, dst=0),
            "gather": lambda: dist.gather(sent[:part], list(received.tensor_split(ranks)) if first else None, dst=0),
            "scatter": lambda: dist.scatter(received[:part], list(sent.tensor_split(ranks)) if first else None, src=0),
            "send_recv": lambda: self._round_trip(sent, received),
            ADDITION: lambda: received.add_(sent),
        }
        return calls[kind]

    def _round_trip(self, sent: torch.Tensor, received: torch.Tensor) -> None:
        """Send from the first rank to the last and back: two messages; the other ranks do nothing."""
        last = self.world.size - 1
        if self.world.rank == 0:
            dist.send(sent, dst=last)
            dist.recv(received, src=last)
        elif self.world.rank == last:
            dist.recv(received, src=0)
            dist.send(sent, dst=0)


# How the processors and GPUs of this machine are connected; unknown parts are empty.


_NODES = Path("/sys/devices/system/node")


def describe_machine(node: int, numa: Path = _NODES) -> dict[str, Any]:
    """Return the name, cores and NUMA nodes of this machine, and the matrix of links that nvidia-smi prints.

    Args:
        node: the number of this machine in the job.
        numa: the folder in which Linux lists NUMA nodes.
    """
    return {
        "node": node,
        "host": platform.node(),
        "cores": available_cores(),
        "numa": _numa(numa),
        "gpu_matrix": command_output("nvidia-smi", "topo", "-m"),
    }


def _numa(folder: Path) -> list[dict[str, str]]:
    """Return each NUMA node and its cores; empty where the system does not list them."""
    found = []
    for node in sorted(folder.glob("node[0-9]*"), key=lambda path: int(path.name.removeprefix("node"))):
        with suppress(OSError):
            found.append({"node": node.name.removeprefix("node"), "cores": (node / "cpulist").read_text().strip()})
    return found


_MIN_ROUNDS, _WANTED_ROUNDS, _MAX_ROUNDS = 3, 12, 200
"""Rounds over all sizes: at least, as many as warming up leaves time for, and at most."""
_BEST_OF = 3
"""Number of timings of which the shortest counts: on shared cores, most calls may wait for another process."""
_TIMING_S, _MAX_CALLS = 2e-3, 20
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
    request = msgspec.json.decode(sys.argv[1], type=LinksRequest)
    assignment = messages.LauncherSettings.from_environment()
    assert assignment is not None, "only dptrace links starts this module"
    folder = Path(assignment.folder)
    with process_group() as world:
        if world.size < 2:
            raise RecordingError("one rank has no link to measure. Start two or more.")
        max_bytes = largest_message(world, request.min_bytes, request.max_bytes)
        check_sums(request.algorithms, world, _ranks_per_node(request, world))
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

    def __init__(self, world: World, request: LinksRequest, max_bytes: int, progress: Path) -> None:
        self.world, self.request, self.max_bytes = world, request, max_bytes
        self.items: list[Measurement] = []
        self.notes: list[str] = []
        self._progress = progress
        self._begun = time.monotonic()
        self._exchanges = Operations(world, max_bytes, _ranks_per_node(request, world))
        self._rounds = 0
        self._accelerator = accelerator_of(world.device)
        if max_bytes < request.max_bytes // 2:
            self.notes.append(f"Messages above {max_bytes:,} bytes were skipped: there is not enough memory for them.")

    def choose(self) -> None:
        """Try each collective from its smallest size up, as far as the time allows; this also warms them up."""
        kinds, stopped = _kinds(self.request), list[str]()
        most_s = _WARMUP_BUDGET_SHARE * self.request.budget_s / len(kinds) / ((_WANTED_ROUNDS + 1) * _BEST_OF)
        for number, kind in enumerate(kinds):
            for size in sizes_between(self.request.min_bytes, self.max_bytes, ELEMENT_BYTES * self.world.size):
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
                    item.calls = max(1, min(_MAX_CALLS, round(_TIMING_S / took)))
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
            self._write_progress(max(0.1, spent / self.request.budget_s))
            continues = self._rounds < _MAX_ROUNDS and spent + (now - began) < self.request.budget_s
            if not self._same_on_all_ranks(float(continues or self._rounds < _MIN_ROUNDS), of_first=True):
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
        of_nodes = {"ranks_per_node": _ranks_per_node(self.request, self.world)} if self.request.algorithms else {}
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


def _kinds(request: LinksRequest) -> list[str]:
    """Return the kinds to time: collectives, algorithms, and for these the addition of two tensors."""
    algorithms = [ALGORITHM_PREFIX + name for name in request.algorithms]
    return [*request.collectives, *algorithms, *([ADDITION] if algorithms else [])]


def _ranks_per_node(request: LinksRequest, world: World) -> int:
    """Return the asked ranks of a node; by default those of a machine, or half of all if there is one machine."""
    local = int(os.environ.get("LOCAL_WORLD_SIZE", world.size))
    return request.ranks_per_node or (local if local < world.size else -(-world.size // 2))


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
