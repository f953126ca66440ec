"""Ranks that make no progress: where they are, and which one the others wait for."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dptrace.record.failures.hangs import (
    STACKS_SIGNAL,
    ask_ranks,
    describe_hang,
    flight_name,
    stacks_header,
    stacks_name,
)
from tests.support.recordings import environment

needs_signal = pytest.mark.skipif(STACKS_SIGNAL is None, reason="this system has no realtime signals")

TRAIN = """
import sys, time
from pathlib import Path
import torch, torch.distributed as dist
from dptrace.record.failures.stack_dump import install

folder, rank = Path(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)

def load_batch():
    time.sleep(600)

gradients = torch.ones(4)
dist.all_reduce(gradients)
assert install(folder, rank, flight_recorder=True)
if rank == 1:
    load_batch()
dist.all_reduce(gradients)
"""


def test_the_culprit_is_named_last(tmp_path: Path) -> None:
    """Ranks that wait in one collective are one clause; the one that keeps them waiting ends the sentence."""
    c10d = '  File "/opt/lib/python3.12/site-packages/torch/distributed/distributed_c10d.py", line 1 in all_reduce\n'
    for rank in (0, 1, 2):
        line = 20 if rank == 1 else 33
        calls = "" if rank == 1 else c10d
        (tmp_path / stacks_name(rank)).write_text(
            f"{stacks_header(7)}Thread 0x00007fc1 (most recent call first):\n"
            f'{calls}  File "/x/train.py", line {line} in go\n'
        )

    text = describe_hang(tmp_path, {0: 12, 1: 12, 2: 12, 3: None}, 600)

    assert "ranks 0, 2 wait in all_reduce (train.py:33, after step 12)" in text
    assert "rank 1 is in go (train.py:20, after step 12)" in text
    assert "rank 3 left no stack" in text
    assert text.index("ranks 0, 2") < text.index("rank 1 ") < text.index("rank 3 ")


def test_numbers_of_collectives_name_who_is_behind(tmp_path: Path) -> None:
    """The rank with fewer collectives of a group is named; messages between two ranks do not count."""
    for rank, count in ((0, 57), (1, 56), (2, 57)):
        entries = [
            {"process_group": ["0", "default_pg"], "collective_seq_id": n, "profiling_name": "nccl:all_reduce"}
            for n in range(count - 2, count + 1)
        ]
        entries.append({"process_group": ["0", "default_pg"], "collective_seq_id": 99, "is_p2p": True})
        (tmp_path / flight_name(rank)).write_text(json.dumps({"entries": entries}))
    (tmp_path / flight_name(3)).write_text("{broken")

    text = describe_hang(tmp_path, {0: 1, 1: 1, 2: 1, 3: 1}, 60)

    assert "In group 0 default_pg, ranks 0, 2 began collective 57 (all_reduce), rank 1 only 56." in text


def test_equal_numbers_name_nobody(tmp_path: Path) -> None:
    """Where all ranks have begun the same collectives, nothing is said about them."""
    for rank in (0, 1):
        (tmp_path / flight_name(rank)).write_text('{"entries": [{"pg_id": 0, "collective_seq_id": 5}]}')

    assert "collective" not in describe_hang(tmp_path, {0: 1, 1: 1}, 60)


@needs_signal
@pytest.mark.spawn
def test_a_foreign_process_is_never_signaled(tmp_path: Path) -> None:
    """The number in a file may be another program's by now, which the signal would end."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        (tmp_path / stacks_name(0)).write_text(stacks_header(other.pid))
        (tmp_path / stacks_name(1)).write_text("no header yet")
        ask_ranks(tmp_path, [os.getpid()])

        assert other.poll() is None
        other.communicate(b"\n")
        assert 0 == other.returncode


@needs_signal
@pytest.mark.spawn
def test_two_stuck_ranks_say_where_they_are(tmp_path: Path) -> None:
    """One real rank waits in gloo's all_reduce for another, which sleeps in the user's function."""
    torch = pytest.importorskip("torch", reason="recording needs torch")
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    ranks = [
        subprocess.Popen([sys.executable, str(script), str(tmp_path), str(rank)], env=environment()) for rank in (0, 1)
    ]
    try:
        parts = ["all_reduce (train.py", "load_batch"]
        if hasattr(torch._C._distributed_c10d, "_dump_fr_trace_json"):
            parts.append("rank 0 began collective 2 (all_reduce), rank 1 only 1.")
        deadline, text = time.monotonic() + 90, ""
        while not all(part in text for part in parts) and time.monotonic() < deadline:
            # A job that hangs is asked once: a signal in every moment could meet Python as it begins a frame.
            time.sleep(0.5)
            ask_ranks(tmp_path, [process.pid for process in ranks])
            text = describe_hang(tmp_path, {0: 12, 1: 12}, 600)
        assert [None, None] == [process.poll() for process in ranks]
    finally:
        for process in ranks:
            process.kill()
            process.wait()

    assert "rank 0 waits in all_reduce (train.py:18, after step 12)" in text
    assert "rank 1 is in load_batch (train.py:11: time.sleep(600), after step 12)" in text
    assert all(part in text for part in parts)
