"""Processes that end with their parent."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", '''
import signal, time
from dptrace.record.tether import end_with_parent
end_with_parent(signal.SIGKILL)
print("tied", flush=True)
time.sleep(60)
'''], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.processes
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells a process of its parent's death")
def test_a_tied_process_ends_when_its_parent_is_killed() -> None:
    """Even by SIGKILL, which leaves the parent no time to end anything."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    deadline = time.monotonic() + 5
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.02)

    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
