"""The measured calls move as many bytes as their size says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.forking import run_python
from tests.support.recordings import environment

torch = pytest.importorskip("torch")

from dptrace.bench.links import operations  # noqa: E402
from dptrace.errors import RecordingError  # noqa: E402 - needs torch
from dptrace.model.collectives import ALL_REDUCES  # noqa: E402
from dptrace.record.ranks.distributed import World, process_group  # noqa: E402

RANK = """
import sys, torch, torch.distributed as dist
from dptrace.bench.links.operations import Operations
from dptrace.record.ranks.distributed import World

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
    monkeypatch.setattr(operations, "_free_on_machine", lambda: 12_000_000)
    with process_group():
        world = World(0, 1, torch.device("cpu"))
        assert 1_000_000 == operations.largest_message(world, 1024, 1 << 30)
        assert 4096 == operations.largest_message(world, 1024, 4096)
        with pytest.raises(RecordingError, match=r"too little memory: messages of 2,000,000 bytes need 12,000,000"):
            operations.largest_message(world, 2_000_000, 1 << 30)


def test_free_memory_is_some_and_no_more_than_the_machine_has() -> None:
    """On each system that runs the tests."""
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    assert 0 < operations._free_on_machine() <= have
