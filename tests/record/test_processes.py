"""Signals that end a launcher: noted anywhere, raised where it is safe."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from dptrace.record.processes import Interrupted, catch_signals, core_wait_ns, descendants


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_raised_where_it_is_looked_for(number: signal.Signals) -> None:
    """Code in between runs on, and the handlers that were there before return."""
    before = signal.getsignal(number)
    with catch_signals() as signals:
        signals.check()
        os.kill(os.getpid(), number)
        assert not signals.again
        with pytest.raises(Interrupted) as stopped:
            signals.check()
        os.kill(os.getpid(), number)
        assert signals.again

    assert 128 + number == stopped.value.exit_code
    assert before == signal.getsignal(number)


def test_an_inner_block_knows_what_the_outer_one_has_noted() -> None:
    """The launcher is entered with signals that arrived while torch was imported."""
    with catch_signals() as outer:
        os.kill(os.getpid(), signal.SIGTERM)
        with catch_signals() as inner, pytest.raises(Interrupted):
            inner.check()
        assert [signal.SIGTERM] == outer.numbers


def test_other_threads_catch_nothing() -> None:
    """Only the main thread may set handlers."""
    numbers: list[list[int]] = []

    def look() -> None:
        with catch_signals() as signals:
            numbers.append(signals.numbers)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()

    assert [[]] == numbers


# Processes that end with their parent.


PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", '''
import signal, time
from dptrace.record.processes import end_with_parent
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
    code = "import signal, sys; from dptrace.record.processes import *"
    code += "; end_with_parent(signal.SIGKILL, sys.argv[1]); print(1)"
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    left = subprocess.run([sys.executable, "-c", code, str(gone.pid)], capture_output=True, check=False)
    tied = subprocess.run([sys.executable, "-c", code, str(os.getpid())], capture_output=True, check=False)

    assert (-9, b"1\n") == (left.returncode, tied.stdout)


@pytest.mark.slow
@pytest.mark.skipif(core_wait_ns() is None, reason="the scheduler counts no waits for cores here")
def test_a_thread_waits_for_a_core_that_another_process_uses() -> None:
    """Two that run on one core wait for each other about half of the time; a sleep waits for none."""
    allowed = os.sched_getaffinity(0)
    one = {min(allowed)}
    busy = "import time\nend = time.monotonic() + 0.6\nwhile time.monotonic() < end: pass"
    os.sched_setaffinity(0, one)
    try:
        with subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, {one})\n{busy}"]):
            before, began = core_wait_ns() or 0, time.monotonic()
            while time.monotonic() - began < 0.8:
                pass
            shared = (core_wait_ns() or 0) - before
        before = core_wait_ns() or 0
        time.sleep(0.05)
        slept = (core_wait_ns() or 0) - before
    finally:
        os.sched_setaffinity(0, allowed)

    assert 0.1e9 < shared < 0.9e9
    assert slept < 0.05e9
