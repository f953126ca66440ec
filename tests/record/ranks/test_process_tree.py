"""Processes that end with their parent."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest

from dptrace.record.ranks.process_tree import descendants

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", '''
import signal, time
from dptrace.record.ranks.process_tree import end_with_parent
end_with_parent(signal.SIGKILL)
print("tied", flush=True)
time.sleep(600)
'''], stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.spawn
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux can signal a process when its parent dies")
def test_a_tied_process_ends_when_its_parent_is_killed() -> None:
    """Also by SIGKILL, after which the parent cannot end anything itself."""
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    deadline = time.monotonic() + 60
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.02)

    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


@pytest.mark.spawn
def test_what_a_process_started_is_found_in_all_generations() -> None:
    """A grandchild in its own session is found; a process without children has none."""
    child = "import subprocess, sys, time; subprocess.Popen(['sleep', '600'], start_new_session=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", child]) as parent:
        deadline = time.monotonic() + 60
        while not descendants(parent.pid) and time.monotonic() < deadline:
            time.sleep(0.02)
        (grandchild,) = descendants(parent.pid)
        assert grandchild in descendants(os.getpid())
        assert [] == descendants(grandchild)
        psutil.Process(grandchild).kill()
        parent.kill()


@pytest.mark.spawn
def test_a_process_whose_parent_has_died_already_ends_at_once() -> None:
    """A launcher may be killed while torch is imported; with a living parent, the process continues."""
    code = "import signal, sys; from dptrace.record.ranks.process_tree import *"
    code += "; end_with_parent(signal.SIGKILL, sys.argv[1]); print(1)"
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    left = subprocess.run([sys.executable, "-c", code, str(gone.pid)], capture_output=True, check=False)
    tied = subprocess.run([sys.executable, "-c", code, str(os.getpid())], capture_output=True, check=False)

    assert (-9, b"1\n") == (left.returncode, tied.stdout)
