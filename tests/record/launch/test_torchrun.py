"""torchrun as a process of ours: its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.processes import processes_in, wait_until

pytest.importorskip("torch")
pytestmark = pytest.mark.spawn

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if len(sys.argv) == 1:
    subprocess.Popen([sys.executable, __file__, "rank"], start_new_session=True)
else:
    open("ready", "w").close()
time.sleep(600)
"""


def test_ranks_that_do_not_heed_are_killed_in_their_own_sessions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some versions of torchrun wait half a minute for them, and they are not in its process group."""
    from dptrace.record.launch import torchrun

    monkeypatch.setattr(torchrun, "_SHUTDOWN_S", 0)
    monkeypatch.setattr(torchrun, "_GRACE_S", 0.2)
    (tmp_path / "stubborn.py").write_text(STUBBORN)
    agent = subprocess.Popen([sys.executable, "stubborn.py"], cwd=tmp_path, start_new_session=True)
    wait_until((tmp_path / "ready").exists)
    assert 2 == len(processes_in(tmp_path))
    torchrun.stop_agent(agent)

    wait_until(lambda: not processes_in(tmp_path), 60)
