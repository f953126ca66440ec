"""What is timed: the algorithms of an all-reduce and their check, collectives and their sizes, and the machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.forking import run_python
from tests.support.recordings import environment

torch = pytest.importorskip("torch")

from dptrace.bench import measure_links  # noqa: E402 - needs torch
from dptrace.bench.links import LinksRequest  # noqa: E402
from dptrace.core.subprocess_pool import available_memory  # noqa: E402
from dptrace.errors import RecordingError  # noqa: E402 - needs torch
from dptrace.model.collectives import ALL_REDUCES, all_reduce_volume  # noqa: E402
from dptrace.record.distributed import World, process_group  # noqa: E402
from dptrace.trainers.parts.collectives import Messages  # noqa: E402

if TYPE_CHECKING:
    from torch import Tensor


def test_an_algorithm_that_adds_up_wrong_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is timed then; the sums of one rank are right."""
    alone = World(0, 1, torch.device("cpu"))
    measure_links.check_sums(ALL_REDUCES, alone, 1)

    def forget(name: str, *_: object) -> Callable[[], object]:
        return lambda: None

    monkeypatch.setattr(measure_links, "all_reduce_call", forget)
    with pytest.raises(RecordingError, match=r"tree all-reduce among 2 ranks gave .* wrong sums on rank 1"):
        measure_links.check_sums(["tree"], World(1, 2, torch.device("cpu")), 1)


# All-reduces written with send and receive, for any number of ranks and any length, without processes.


def all_reduced(name: str, tensors: list[Tensor], per_node: int = 2) -> list[int]:
    """All-reduce in place with a thread for each rank, and return how many elements each sent."""
    size, sent = len(tensors), [0] * len(tensors)
    # All at once: threads that make one at the same time would each have their own.
    links: dict[tuple[int, int], Queue[Tensor]] = {pair: Queue() for pair in product(range(size), range(size))}

    def rank_of(rank: int) -> None:
        def swap(out: Messages, into: Messages) -> None:
            for tensor, peer in out:
                sent[rank] += len(tensor)
                links[rank, peer].put(tensor.clone())
            for tensor, peer in into:
                tensor.copy_(links[peer, rank].get(timeout=60))

        buffer = torch.empty_like(tensors[rank])
        measure_links.all_reduce_call(name, rank, size, per_node, tensors[rank], buffer, swap)()

    with ThreadPoolExecutor(size) as pool:
        list(pool.map(rank_of, range(size)))
    return sent


def numbers(size: int, length: int) -> Any:
    generator = torch.Generator().manual_seed(size * 100 + length)
    return torch.randint(-1000, 1000, (size, length), generator=generator).float()


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL_REDUCES)
def test_every_rank_ends_with_the_sum_of_what_the_formulas_send(name: str) -> None:
    """On 1 to 9 ranks, with fewer elements than ranks, with lengths that do not divide, and with uneven nodes. The
    busiest rank sends its share, and all ranks together 2(P-1) tensors, whatever the algorithm."""
    for size in range(1, 10):
        for length, per_node in ((0, 1), (1, 2), (37, 3), (2520, 4)):
            values = numbers(size, length)
            tensors = list(values.clone())
            sent = all_reduced(name, tensors, per_node)

            assert all(torch.equal(values.sum(0), tensor) for tensor in tensors), (size, length, per_node)
            if size > 1 and length == 2520:  # divisible by all numbers of chunks
                volume = all_reduce_volume(name, size, per_node)
                assert 2 * (size - 1) * length == sum(sent) == round(volume.total_share * length)
                assert max(sent) == round(volume.sent_share * length), size


# The measurement on one rank; test_links.py runs it with real ranks.


@pytest.mark.heavy
@given(st.integers(64, 10**6), st.integers(0, 10**9), st.sampled_from([8, 12, 16, 32, 64]))
def test_sizes_double_in_whole_units(least: int, more: int, unit: int) -> None:
    """Sizes lie between the limits, each within a unit of a doubling, and none is smaller than a unit."""
    sizes = measure_links.sizes_between(least, least + more, unit)

    assert all(size % unit == 0 and size >= unit for size in sizes)
    assert all(0 <= (least << k) - size < unit for k, size in enumerate(sizes))
    assert sizes[-1] <= least + more < least << len(sizes)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A measurement on one rank, whose collectives return at once."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    asked = LinksRequest(["all_reduce", "broadcast"], min_bytes=1024, max_bytes=8192, budget_s=0.5, processes=1)
    with process_group():
        yield measure_links._LinkBenchmark(World(0, 1, torch.device("cpu")), asked, 8192, tmp_path / "progress")


@pytest.mark.heavy
def test_of_three_timings_the_least_counts(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds run until the budget is used, and each adds the shortest of three timings to a size."""
    bench.choose()
    ticks = iter(range(1, 10**9))
    monkeypatch.setattr(bench, "_time", lambda item: next(ticks) * 1e-3)
    bench.measure()
    times = bench.results()
    timed = [(sample["collective"], sample["bytes"]) for sample in times["samples"]]

    assert [("all_reduce", 1024 << k) for k in range(4)] == timed[:4]
    for item, sample in zip(bench.items, times["samples"], strict=True):
        assert times["rounds"] * item.timings_per_round == len(sample["seconds"])
        assert [min(item.seconds[i : i + 3]) for i in range(0, len(item.seconds), 3)] == sample["seconds"]
    assert times["rounds"] >= 3
    assert bench._progress.read_text().endswith(" 100")


@pytest.mark.heavy
def test_what_takes_too_long_or_cannot_be_done_is_left_out(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collective whose next size exceeds the budget stops, one that the backend lacks is skipped; a note says so, and
    the other continues. Other errors are raised."""
    monkeypatch.setattr(bench, "_time", lambda item: 1.0 if item.kind == "all_reduce" else 1e-6)
    bench.choose()
    assert [1024, 1024, 2048, 4096, 8192] == [item.size for item in bench.items]
    assert "--budget" in bench.notes[0]
    assert "all_reduce at 1,024 bytes" in bench.notes[0]

    def refuse(item: measure_links.Measurement) -> float:
        if item.kind == "all_reduce":
            raise RuntimeError("ProcessGroupGloo does not support all_reduce")
        return 1e-6

    bench.items.clear()
    monkeypatch.setattr(bench, "_time", refuse)
    bench.choose()
    assert {"broadcast"} == {item.kind for item in bench.items}
    assert "all_reduce was skipped: RuntimeError: ProcessGroupGloo does not support all_reduce" in bench.notes

    monkeypatch.setattr(bench, "_time", lambda item: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        bench.choose()


# The measured calls move as many bytes as their size says.


RANK = """
import sys, torch, torch.distributed as dist
from dptrace.bench.measure_links import Operations
from dptrace.record.distributed import World

dist.init_process_group("gloo")
rank = dist.get_rank()
operations = Operations(World(rank, 2, torch.device("cpu")), 64)
operations._sent[:] = torch.arange(16) + 100 * rank
for kind in sys.argv[1:]:
    operations._received[:] = -1
    sent = operations._sent.clone()
    operations.call(kind, 32)()
    if rank == (kind not in ("reduce", "gather")):  # these have their result on rank 0
        print(kind, operations._sent.int().tolist(), operations._received.int().tolist(), flush=True)
    operations._sent[:] = sent
"""


@pytest.mark.slow
@pytest.mark.spawn
def test_each_collective_moves_its_bytes_and_no_others(tmp_path: Path) -> None:
    """32 of 64 bytes on two ranks are eight numbers; those of the last rank show who sent how much."""
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    kinds = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "gather", "scatter", "send_recv"]
    kinds += ["reduce", *(f"all_reduce/{name}" for name in ALL_REDUCES), "add"]
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script), *kinds]
    done = run_python(*command, env=environment())
    assert 0 == done.returncode, done.stderr
    tensors = {}
    for line in done.stdout.splitlines():
        kind, sent, received = line.replace("] [", "]|[").replace(" [", "|[", 1).split("|")
        tensors[kind] = [int(x) for x in sent.strip("[]").split(",")], [int(x) for x in received.strip("[]").split(",")]
    own, rest, nothing = list(range(100, 108)), list(range(108, 116)), [-1] * 8
    gathered, reduced = tensors["gather"][1], tensors["reduce"][0][:8]

    assert kinds == list(tensors)
    assert [100 + 2 * i for i in range(8)] + rest == tensors["all_reduce"][0]
    assert [0, 1, 2, 3, 100, 101, 102, 103, *nothing] == tensors["all_gather"][1]
    assert [108, 110, 112, 114] == tensors["reduce_scatter"][1][:4]
    assert [4, 5, 6, 7, 104, 105, 106, 107, *nothing] == tensors["all_to_all"][1]
    assert list(range(8)) + rest == tensors["broadcast"][0]
    assert list(range(8)) + nothing == tensors["send_recv"][1]
    assert [4, 5, 6, 7] == tensors["scatter"][1][:4]
    assert [99 + i for i in own] == [100 + i for i in tensors["add"][1][:8]]
    for name in ALL_REDUCES:
        assert tensors["all_reduce"][0] == tensors[f"all_reduce/{name}"][0]
    assert [0, 1, 2, 3, 100, 101, 102, 103, *nothing] == gathered
    assert [100 + 2 * i for i in range(8)] == reduced
    assert own + rest == tensors["send_recv"][0]


@pytest.mark.heavy
def test_sizes_end_where_memory_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the free memory is shared by three tensors per rank; less than the smallest size is an error."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr(measure_links, "available_memory", lambda: 12_000_000)
    with process_group():
        world = World(0, 1, torch.device("cpu"))
        assert 1_000_000 == measure_links.largest_message(world, 1024, 1 << 30)
        assert 4096 == measure_links.largest_message(world, 1024, 4096)
        with pytest.raises(RecordingError, match=r"too little memory: messages of 2,000,000 bytes need 12,000,000"):
            measure_links.largest_message(world, 2_000_000, 1 << 30)
    monkeypatch.undo()
    assert 0 < available_memory() <= os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


# The connections of a machine.


MATRIX = "\tGPU0\tGPU1\nGPU0\t X \tNV18\nGPU1\tNV18\t X \n"


def test_numa_nodes_are_listed_by_number(tmp_path: Path) -> None:
    """Node 10 follows node 2; other files are ignored."""
    for node, cores in (("node10", "8-15"), ("node2", "0-7"), ("nodes", "x")):
        (tmp_path / node).mkdir()
        (tmp_path / node / "cpulist").write_text(f"{cores}\n")
    (tmp_path / "node3").mkdir()  # without a list of cores

    assert [{"node": "2", "cores": "0-7"}, {"node": "10", "cores": "8-15"}] == measure_links.describe_machine(
        0, tmp_path
    )["numa"]
    assert [] == measure_links.describe_machine(0, tmp_path / "none")["numa"]


@pytest.mark.parametrize(("does", "matrix"), [(f"printf '{MATRIX}'", MATRIX), ("echo no driver; exit 9", ""), ("", "")])
def test_the_matrix_of_links_is_passed_on(
    does: str, matrix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What nvidia-smi prints; nothing where it fails or is missing. Host and cores are listed, too."""
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{does}\n")
    program.chmod(0o755 if does else 0o644)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.defpath}")
    machine = measure_links.describe_machine(3)

    assert (3, matrix) == (machine["node"], machine["gpu_matrix"])
    assert machine["host"]
    assert machine["cores"] >= 1
