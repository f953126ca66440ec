"""The causes of errors that many scripts meet."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dptrace.record import failures
from dptrace.record.failures import (
    STACKS_SIGNAL,
    Failure,
    ask_ranks,
    describe_hang,
    explain,
    find_failure,
    install,
    last_lines,
    latest_collectives,
)
from dptrace.record.messages import error_text
from tests.support.forking import start_python
from tests.support.recordings import environment

NO_CUDA = "this needs CUDA, and there is none here"


@pytest.mark.parametrize(
    ("message", "says"),
    [
        ("AssertionError: Torch not compiled with CUDA enabled", NO_CUDA),
        ("RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU …", NO_CUDA),
        ("DistBackendError: ProcessGroupNCCL is only supported with GPUs, no GPUs found!", NO_CUDA),
        ("RuntimeError: … object on a CUDA device but torch.cuda.is_available() is False.", NO_CUDA),
        ("ModuleNotFoundError: No module named 'tokenizers.models'", "pip install tokenizers"),
        ("ModuleNotFoundError: No module named 'sklearn.svm'", "pip install scikit-learn"),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: 'data/a.bin'",
            f"data/a.bin, which is missing in {os.getcwd()}",
        ),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/a.bin'", "/data/a.bin, which is missing ("),
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "memory is full"),
        (
            "AcceleratorError: CUDA error: invalid device ordinal\nCUDA kernel errors might",
            "GPU that this machine does",
        ),
        ("DistNetworkError: … port: 12355, … EADDRINUSE", "12355"),
        (error_text(KeyError("LOCAL_RANK")), "dptrace record torchrun --nproc-per-node 1"),
        ("ValueError: … environment variable RANK expected, but not set", "dptrace record torchrun --nproc-per-node 1"),
        (error_text(SystemExit(2)), "refused its arguments"),
    ],
)
def test_a_known_error_says_what_to_do(message: str, says: str) -> None:
    """The sentence comes first, and is one line."""
    told = explain(message)

    assert says in told
    assert 1 == len(told.splitlines())


@pytest.mark.parametrize("message", ["ValueError: boom", "FileNotFoundError: no shard", "killed by SIGKILL", ""])
def test_an_unknown_error_stays_as_it_is(message: str) -> None:
    """No guess takes the place of the script's own words."""
    assert message == explain(message)


# Find the rank that failed first.


def _write_message(
    folder: Path, rank: int, time_ns: int, message: str, advice: bool = False, exit_code: int = 1
) -> None:
    content = {"rank": rank, "time_ns": time_ns, "message": message, "advice": advice, "exit_code": exit_code}
    (folder / f"rank{rank}.failure.json").write_text(json.dumps(content))


def _exits(folder: Path, *codes: tuple[int, int]) -> None:
    exits = [{"rank": rank, "exit_code": code} for rank, code in codes]
    (folder / "agent0.json").write_text(json.dumps(exits))


CLOSED, STOPPED = "RuntimeError: Connection closed by peer", "ended by SIGTERM"


@pytest.mark.parametrize(
    ("exits", "messages", "expected"),
    [
        # both exit within one polling interval of torchrun: their own timestamps show which was first
        ([(0, 1), (1, 1)], [(0, 2000, CLOSED), (1, 1000, "ValueError: boom")], Failure(1, "ValueError: boom")),
        # SIGKILL leaves no message and precedes the error of a peer; SIGTERM only means that torchrun stops the peers
        ([(0, -15), (1, 1), (2, -9)], [(1, 1000, CLOSED)], Failure(2, "ended by SIGKILL (out of memory?)", 137)),
        ([(1, 1), (0, -11)], [(1, 1000, CLOSED)], Failure(0, "ended by SIGSEGV", 139)),
        # NCCL's watchdog aborts the peers of a rank that raised; a rank that aborts itself resets its peers
        ([(1, 1), (0, -6)], [(1, 1000, "ValueError: bad batch")], Failure(1, "ValueError: bad batch")),
        ([(1, 1), (0, -6)], [(1, 1000, CLOSED)], Failure(0, "ended by SIGABRT", 134)),
        ([(1, 3)], [], Failure(1, "exit code 3", 3)),
        ([(0, 143), (1, 3)], [], Failure(1, "exit code 3", 3)),
        # one that leaves without a word, or aborts, while torchrun ends its peer
        ([(0, 143), (1, 3)], [(0, 1000, STOPPED, False, 143)], Failure(1, "exit code 3", 3)),
        ([(0, 143), (1, -6)], [(0, 1000, STOPPED, False, 143)], Failure(1, "ended by SIGABRT", 134)),
        ([(0, 143)], [(0, 1000, STOPPED, False, 143)], Failure(0, STOPPED, 143)),
        ([(1, 143), (0, -15)], [], Failure(1, "ended by SIGTERM", 143)),
        ([], [], None),
    ],
)
def test_the_cause_comes_before_its_consequence(
    exits: list[tuple[int, int]], messages: list[tuple[Any, ...]], expected: Failure | None, tmp_path: Path
) -> None:
    """Among exit codes, signals and messages of all ranks, the first one that no peer explains."""
    _exits(tmp_path, *exits)
    for message in messages:
        _write_message(tmp_path, *message)

    assert expected == find_failure(tmp_path)


def test_advice_of_a_rank_keeps_its_exit_code(tmp_path: Path) -> None:
    """A usage error that only a rank can detect is reported as one."""
    _write_message(tmp_path, 0, 1, "use another batch size", advice=True, exit_code=2)

    assert Failure(0, "use another batch size", 2, True) == find_failure(tmp_path)


def test_the_last_lines_leave_out_kinetos_own_output(tmp_path: Path) -> None:
    """A rank without output has none."""
    (tmp_path / "rank3.log").write_text("said\nUSDT: noise\ncried\n")

    assert ["said", "cried"] == last_lines(tmp_path / "rank3.log").split()[-2:]
    assert "" == last_lines(tmp_path / "rank2.log")


def test_a_rank_that_left_silently_is_the_cause_of_its_peers_error(tmp_path: Path) -> None:
    """Its heartbeat says that it has ended, before the other failed for want of it; an error of its own goes first."""
    _exits(tmp_path, (0, 1))
    (tmp_path / "rank1.steps").write_text("5 0 -1 0")
    (tmp_path / "rank0.steps").write_text("5 0 2 9")
    later = (tmp_path / "rank1.steps").stat().st_mtime_ns + 1
    _write_message(tmp_path, 0, later, "RuntimeError: Connection closed by peer")
    failure = find_failure(tmp_path)
    assert failure is not None
    assert failure.message.startswith("rank 1 ended without an error first")

    _write_message(tmp_path, 0, later, "ValueError: boom")
    assert Failure(0, "ValueError: boom") == find_failure(tmp_path)


# Ranks that make no progress: where they are, and which one has begun fewer collectives.


needs_signal = pytest.mark.skipif(STACKS_SIGNAL is None, reason="this system has no realtime signals")

TRAIN = """
import sys, time
from pathlib import Path
import torch, torch.distributed as dist
from dptrace.record.failures import install

folder, rank = Path(sys.argv[1]), int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)

def load_batch():
    time.sleep(600)

gradients = torch.ones(4)
dist.all_reduce(gradients)
assert install(folder, rank)
if rank == 1:
    load_batch()
dist.all_reduce(gradients)
"""


TORCH = "/opt/venv/lib/python3.12/site-packages/torch"
OWN = Path(failures.__file__).parents[1]
HEAD = "Thread 0x00007fc14cdd8b80 (most recent call first):\n"
SCRIPT = '  File "/home/me/train.py", line 33 in step\n  File "/home/me/train.py", line 90 in <module>\n'
RUNNER = (
    '  File "<frozen runpy>", line 88 in _run_code\n' + f'  File "{OWN}/record/script/runner.py", line 60 in _run\n'
)


def _stacks(folder: Path, rank: int, *calls: str, head: str = HEAD, script: str = SCRIPT) -> None:
    """Write where a rank is that runs the script, which makes *calls*, the most recent first."""
    lines = "".join(f'  File "{call}\n' for call in calls)
    other = HEAD + '  File "/home/me/train.py", line 1 in other\n\n'
    (folder / f"rank{rank}.stacks").write_text(f"# process 7\n{other}{other}{head}{lines}{script}{RUNNER}")


@pytest.mark.parametrize(
    ("calls", "expected"),
    [
        (
            (
                f'{TORCH}/distributed/distributed_c10d.py", line 3252 in all_reduce',
                f'{TORCH}/distributed/c10d_logger.py", line 83 in wrapper',
            ),
            "train.py:33 (in all_reduce)",
        ),
        ((f'{TORCH}/cuda/__init__.py", line 1040 in synchronize',), "train.py:33 (in synchronize)"),
        (
            (
                f'{TORCH}/autograd/graph.py", line 825 in _engine_run_backward',
                f'{TORCH}/_tensor.py", line 581 in backward',
            ),
            "train.py:33 (in backward)",
        ),
        ((f'{OWN}/record/distributed.py", line 276 in barrier',), "train.py:33 (in barrier)"),
        ((), "train.py:33 (step: )"),
    ],
)
def test_each_ranks_line_is_the_users(calls: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    """Whatever lies above and below it, in the last stack, in the formats of Python 3.10 to 3.14; and what it calls."""
    for head in (HEAD, HEAD.replace("80 (", "80 [python] ("), HEAD.replace("Thread", "Current thread")):
        _stacks(tmp_path, 0, *calls, head=head)
        assert f"rank 0 at {expected}, after step 4" in describe_hang(tmp_path, {0: 4}, 60)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (f'  File "{TORCH}/a.py", line 9 in sync\n  File "{TORCH[:-5]}axolotl/train.py", line 7 in go\n', "train.py:7"),
        (f'  File "{TORCH}/a.py", line 9 in sync\n  File "{OWN}/trainers/ddp.py", line 8 in train\n', "ddp.py:8"),
        ("", "runpy"),
    ],
)
def test_without_a_script_the_nearest_line_is_named(script: str, expected: str, tmp_path: Path) -> None:
    """That of a package whose command runs the training, or of a trainer, before torch's and dptrace's own."""
    _stacks(tmp_path, 0, script=script)

    assert expected in describe_hang(tmp_path, {0: None}, 60)


def test_ranks_at_one_line_are_one_clause(tmp_path: Path) -> None:
    """A rank in another line, and one that could not answer, have their own."""
    for rank in (0, 2):
        _stacks(tmp_path, rank, f'{TORCH}/distributed/distributed_c10d.py", line 1 in all_reduce')
    code = tmp_path / "load.py"
    code.write_text("def load():\n    time.sleep(600)  # a slow disk\n")
    _stacks(tmp_path, 1, f'{code}", line 2 in load')
    (tmp_path / "rank3.stacks").write_text("# process 12\n")

    text = describe_hang(tmp_path, {0: 12, 1: 12, 2: 12, 3: None}, 600)
    assert "ranks 0, 2 at train.py:33 (in all_reduce), after step 12" in text
    assert "rank 1 at load.py:2 (load: time.sleep(600)  # a slow disk), after step 12" in text
    assert "rank 3 at an unknown line" in text


ENTRIES = {
    "entries": [
        *(
            {"process_group": ["0", "default_pg"], "collective_seq_id": n, "profiling_name": "x:all_reduce"}
            for n in (5, 6)
        ),
        {"process_group": ["0", "default_pg"], "collective_seq_id": 99, "is_p2p": True},
    ]
}


@pytest.mark.parametrize(
    ("dumps", "expected"),
    [
        ({"_dump_nccl_trace_json": json.dumps(ENTRIES).encode()}, {"0 default_pg": (6, "all_reduce")}),
        (
            {
                "_dump_nccl_trace_json": b"{}",
                "_dump_fr_trace_json": b'{"entries": [{"pg_id": 0, "collective_seq_id": 5}]}',
            },
            {"0": (5, "")},
        ),
        ({"_dump_fr_trace_json": b"not json"}, {}),
    ],
)
def test_the_latest_collective_of_each_group_is_known(
    monkeypatch: pytest.MonkeyPatch, dumps: dict[str, bytes], expected: dict[str, tuple[int, str]]
) -> None:
    """Whatever this torch offers: NCCL's recorder from 2.5 on, or that of all backends, or nothing."""
    torch = pytest.importorskip("torch")
    functions = {name: staticmethod(lambda content=content: content) for name, content in dumps.items()}
    monkeypatch.setattr(torch._C, "_distributed_c10d", type("library", (), functions))

    assert expected == latest_collectives()


def test_numbers_of_collectives_name_who_is_behind(tmp_path: Path) -> None:
    """The rank with fewer collectives of a group is named; nothing is said where all have begun the same."""
    for rank, count in ((0, 57), (1, 56), (2, 57)):
        lasts: dict[str, Any] = {"0 default_pg": (count, "all_reduce"), "1": (5, "")}
        (tmp_path / f"rank{rank}.collectives.json").write_text(json.dumps(lasts))
    (tmp_path / "rank3.collectives.json").write_text("{broken")

    text = describe_hang(tmp_path, {0: 1, 1: 1, 2: 1, 3: 1}, 60)
    assert "In group 0 default_pg, ranks 0, 2 began collective 57 (all_reduce), rank 1 only 56." in text
    assert "group 1" not in text


@needs_signal
@pytest.mark.spawn
def test_a_foreign_process_is_never_signaled(tmp_path: Path) -> None:
    """The number in a file may be another program's by now, which the signal would end."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        (tmp_path / "rank0.stacks").write_text(f"# process {other.pid}\n")
        (tmp_path / "rank1.stacks").write_text("no header yet")
        ask_ranks(tmp_path, [os.getpid()])

        assert other.poll() is None
        other.communicate(b"\n")
        assert 0 == other.returncode


@needs_signal
def test_a_script_keeps_its_own_handler(tmp_path: Path) -> None:
    """If the script handles the signal, dptrace leaves it alone and no launcher will send it."""
    assert STACKS_SIGNAL is not None
    before = signal.signal(STACKS_SIGNAL, lambda number, frame: None)
    try:
        assert not install(tmp_path, 0)
        assert [] == os.listdir(tmp_path)
    finally:
        signal.signal(STACKS_SIGNAL, before)


@pytest.mark.slow
@needs_signal
@pytest.mark.spawn
def test_two_stuck_ranks_say_where_they_are(tmp_path: Path) -> None:
    """One real rank waits in gloo's all_reduce for another, which sleeps in the user's function."""
    torch = pytest.importorskip("torch", reason="recording needs torch")
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    ranks = [start_python(str(script), str(tmp_path), str(rank), env=environment()) for rank in (0, 1)]
    try:
        parts = ["in all_reduce", "load_batch"]
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

    assert "rank 0 at train.py:18 (in all_reduce), after step 12" in text
    assert "rank 1 at train.py:11 (load_batch: time.sleep(600)), after step 12" in text
    assert all(part in text for part in parts)
