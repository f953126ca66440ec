"""No test waits for ever: the processes that tests start get no lock of another one, and each test has a time limit."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import forking
from tests.support.forking import run_python
from tests.support.paths import ROOT

THREADED = """
import json, os, subprocess, sys, tempfile, threading

sys.stdout.reconfigure(errors="replace")  # as dptrace's commands do, which asks a file where it is
if sys.argv[1:] == ["child"]:
    print(json.dumps([os.getpid(), os.getppid(), os.getsid(0), os.getcwd(), tempfile.gettempdir()]))
    sys.exit(7)

tempfile.tempdir = None  # torch has asked for it, and then nobody needs the lock

def hold():
    with tempfile._once_lock:
        held.set()
        threading.Event().wait()

held = threading.Event()
threading.Thread(target=hold, daemon=True).start()
held.wait()
command = [sys.executable, sys.argv[0], "child"]
with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True, cwd="there") as child:
    try:
        seen = json.loads(child.communicate(timeout=20)[0])
        print(json.dumps([os.getpid(), child.pid, seen, child.wait()]), flush=True)
    finally:
        child.kill()
os._exit(3)
"""

HANGING = """
import threading, pytest

def waits_in_a_thread():
    threading.Event().wait()

@pytest.mark.limit(0.5)
def test_waits():
    threading.Thread(target=waits_in_a_thread, daemon=True).start()
    threading.Event().wait()
"""


@pytest.mark.spawn
def test_a_process_with_threads_is_not_forked(tmp_path: Path) -> None:
    """Its child does not wait for a lock that a thread holds, and has its parent, session, folder and exit code."""
    (tmp_path / "there").mkdir()
    (tmp_path / "threaded.py").write_text(THREADED)
    done = run_python(str(tmp_path / "threaded.py"), cwd=tmp_path)
    assert 3 == done.returncode, done.stderr
    parent, child, seen, code = json.loads(done.stdout)

    assert [child, parent, child, str(tmp_path / "there")] == seen[:4]
    assert 7 == code


@pytest.mark.slow
@pytest.mark.spawn
def test_what_takes_too_long_ends_with_its_stacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that runs as a fork is ended, and the error names the line that it waits in."""
    monkeypatch.setattr(forking, "limit_s", 5)
    (tmp_path / "waits.py").write_text("import threading\n\nthreading.Event().wait()\n")
    with pytest.raises(AssertionError, match=r'waits\.py", line 3'):
        run_python("waits.py", cwd=tmp_path)


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.spawn
@pytest.mark.parametrize("workers", [[], ["-n1"]])
def test_a_test_has_a_time_limit(tmp_path: Path, workers: list[str]) -> None:
    """A test that waits for ever fails, with the stacks of all threads; beside xdist, the other tests go on."""
    (tmp_path / "test_hanging.py").write_text(f"{HANGING}\ndef test_passes():\n    pass\n")
    command = [sys.executable, "-m", "pytest", "-p", "tests.conftest", "-c", os.devnull, *workers, str(tmp_path)]
    paths = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=60
    )

    assert 1 == done.returncode, done.stdout
    assert "in waits_in_a_thread" in done.stderr
    assert "in test_waits" in done.stderr
    if workers:
        assert "1 failed, 1 passed" in done.stdout
