"""The first machine begins before the others, and the end of one is noticed by the others."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest

from dptrace.errors import RecordingError
from dptrace.record.launch import torchrun
from dptrace.record.launch.torchrun import EndedElsewhere, wait_for_first_machine
from tests.support.forking import start_python
from tests.support.recordings import environment


@pytest.mark.heavy
def test_a_machine_waits_until_the_first_one_listens() -> None:
    """It returns once the port is open, which happens after the wait has begun; a closed port is told."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        endpoint = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(RecordingError, match=endpoint):
            wait_for_first_machine(endpoint, timeout_s=0.1)
        waiting = threading.Thread(target=wait_for_first_machine, args=(endpoint,))
        waiting.start()
        listener.listen()
        waiting.join(60)

    assert not waiting.is_alive()


@pytest.mark.parametrize("how", ["failed", "renamed"])
def test_the_end_of_another_machine_is_noticed_after_a_grace(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its list of failed ranks, or a folder that the first machine has renamed, end this one; its own list does not."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    folder = tmp_path / "staging"
    folder.mkdir()
    ended = EndedElsewhere(folder, 1)
    (folder / "agent1.json").write_text("[]")
    assert not ended
    if how == "failed":
        (folder / "agent0.json").write_text("[]")
    else:
        folder.rename(tmp_path / "done")
    now[0] += 2
    assert not ended
    now[0] += torchrun._MACHINES_GRACE_S + 1
    assert ended


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
@pytest.mark.spawn
def test_two_machines_record_one_run(tmp_path: Path) -> None:
    """Two launchers with two ranks each, as on two machines that share a folder, write one run with nodes and ranks."""
    where = ["--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{_free_port()}"]
    what = ["record", "--mode", "hierarchical", "--gpus", "2", "--model", "small", "--batch-size", "64", "-o", "both"]
    less = ["--steps", "2", "--warmup", "2", "--wait", "2"]
    nodes = [
        start_python(
            *("-m", "dptrace", *what, *less, *where, "--node-rank", str(node)),
            cwd=tmp_path,
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in range(2)
    ]
    errors = [node.communicate(timeout=180)[1] for node in nodes]
    assert [0, 0] == [node.returncode for node in nodes], errors
    run = json.loads((tmp_path / "both" / "run.json").read_text())

    assert [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)] == [
        (r["rank"], r["node"], r["local_rank"]) for r in run["ranks"]
    ]
    assert (4, 2) == (run["world_size"], run["nnodes"])
    assert "machine 0" in errors[1]
    # One folder holds the traces of all ranks.
    names = {path.name for path in (tmp_path / "both").iterdir() if path.suffix != ".log"}
    assert {"run.json", *(f"rank{rank}.pt.trace.json.gz" for rank in range(4))} == names
