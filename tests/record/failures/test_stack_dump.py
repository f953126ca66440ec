"""What a rank writes about itself when it is asked."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="recording needs torch")

from dptrace.record.failures.hangs import STACKS_SIGNAL, ask_ranks, stacks_name  # noqa: E402
from dptrace.record.failures.stack_dump import dump_flight_recorder, install  # noqa: E402
from tests.support.recordings import environment  # noqa: E402

needs_signal = pytest.mark.skipif(STACKS_SIGNAL is None, reason="this system has no realtime signals")
ENTRIES = {"entries": [{"collective_seq_id": 5, "profiling_name": "nccl:all_reduce", "sizes": (4,)}]}


def stub(monkeypatch: pytest.MonkeyPatch, **dumps: bytes) -> None:
    """Give torch only these functions of its flight recorder."""
    functions = {name: staticmethod(lambda content=content: content) for name, content in dumps.items()}
    monkeypatch.setattr(torch._C, "_distributed_c10d", type("library", (), functions))


@pytest.mark.parametrize(
    "dumps",
    [
        pytest.param({"_dump_nccl_trace": pickle.dumps(ENTRIES)}, id="NCCL of torch 2.4"),
        pytest.param({"_dump_nccl_trace_json": json.dumps(ENTRIES).encode()}, id="NCCL from 2.5 on"),
        pytest.param({"_dump_nccl_trace_json": b"{}", "_dump_fr_trace_json": json.dumps(ENTRIES).encode()}, id="gloo"),
    ],
)
def test_the_flight_recorder_is_written_as_json(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, dumps: dict[str, bytes]
) -> None:
    """Whatever this torch offers, the file is JSON, and never a pickle."""
    stub(monkeypatch, **dumps)

    assert dump_flight_recorder(tmp_path / "out.json")
    assert 5 == json.loads((tmp_path / "out.json").read_text())["entries"][0]["collective_seq_id"]


def test_without_records_nothing_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No function, an empty recorder, or one that fails: no file."""
    stub(monkeypatch, _dump_fr_trace_json=b'{"entries": []}', _dump_fr_trace=b"not a pickle")

    assert not dump_flight_recorder(tmp_path / "out.json")
    assert [] == list(tmp_path.iterdir())


@needs_signal
@pytest.mark.spawn
def test_a_rank_answers_more_than_once_and_goes_on(tmp_path: Path) -> None:
    """Each signal adds the stacks of all threads to the file; the process itself is not disturbed."""
    code = (
        "import sys, threading\nfrom pathlib import Path\nfrom dptrace.record.failures.stack_dump import install\n"
        "def other(): threading.Event().wait()\nthreading.Thread(target=other, daemon=True).start()\n"
        "install(Path(sys.argv[1]), 3); install(Path(sys.argv[1]), 3)\nprint('ready', flush=True)\ninput()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment()
    ) as process:
        assert process.stdout is not None
        assert b"ready\n" == process.stdout.readline()
        ask_ranks(tmp_path, [process.pid])
        ask_ranks(tmp_path, [process.pid])
        process.communicate(b"\n")

        assert 0 == process.returncode
    text = (tmp_path / stacks_name(3)).read_text()
    assert 1 == text.count("# process")
    assert 2 == text.count(" in other\n")
    assert 2 == text.count('File "<string>"') - text.count(" in other\n")


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
