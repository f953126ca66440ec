"""No test waits for ever: the processes that tests start get no lock of another one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.forking import run_python
from tests.support.paths import ROOT

THREADED = """
import json, os, subprocess, sys, tempfile, threading

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
