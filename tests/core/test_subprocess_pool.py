"""The pool of processes."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import dptrace
from dptrace.core.files import atomic_write
from dptrace.core.subprocess_pool import PythonProcess, collection_paused, run_parallel, serve
from dptrace.errors import DptraceError, MissingExtraError


def double(item: int) -> tuple[int, int]:
    time.sleep(0.05)  # so that no process takes all items
    return 2 * item, os.getpid()


def fails(item: int) -> int:
    if item == 1:
        raise MissingExtraError("Item 1 needs torch", "record")
    if item == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if item == 3:
        raise ZeroDivisionError("a mistake of ours")
    return item


class TwoArguments(DptraceError):
    """An error that is pickled with its message alone, and can't be unpickled from that."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path}: {what}")


class OnlyOut:
    """A value that can be pickled and not unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return float, ("x",)


def does_not_arrive(item: tuple[str, int, Path]) -> object:
    """Return or raise what can't be unpickled; the home process waits until another one has done both."""
    kind, home, folder = item
    if os.getpid() != home:
        (folder / kind).touch()
    while kind == "wait" and os.getpid() == home and not (folder / "result").exists():
        time.sleep(0.01)
    if kind == "error":
        raise TwoArguments("a.json", "is empty")
    return OnlyOut() if kind == "result" else kind


def prints(item: int) -> int:
    print("noise")
    os.write(1, b"more noise")
    return item


def interrupted(item: tuple[Path, int]) -> None:
    """Write a file for long; in the home process, fail as soon as another process has written some of it."""
    path, home = item
    if os.getpid() == home:
        while not any(part.stat().st_size for part in path.parent.iterdir()):
            time.sleep(0.01)
        raise KeyboardInterrupt
    with atomic_write(path) as temporary:
        temporary.write_text("half")
        time.sleep(100)


def elsewhere(item: tuple[int, int]) -> int:
    """Kill the process of an item only if it is not this one."""
    number, home = item
    if os.getpid() == home:
        time.sleep(3)  # so that the others take the other items
        return number
    return fails(number)


@pytest.mark.slow
@pytest.mark.spawn
def test_items_are_done_by_several_processes_and_all_come_back() -> None:
    """Every item has one result, under its index, and more than one process works."""
    results = dict(run_parallel(double, range(40), 3))

    assert {i: 2 * i for i in range(40)} == {i: r[0] for i, r in results.items() if not isinstance(r, DptraceError)}
    assert 1 < len({r[1] for r in results.values() if not isinstance(r, DptraceError)}) <= 3


@pytest.mark.heavy
def test_one_job_is_this_process() -> None:
    """No process is started for one item or one job."""
    assert [(0, (6, os.getpid()))] == list(run_parallel(double, [3], 8))
    assert {os.getpid()} == {r[1] for _, r in run_parallel(double, [1, 2], 1) if not isinstance(r, DptraceError)}
    with pytest.raises(ZeroDivisionError):  # a mistake of ours
        list(run_parallel(fails, [3], 2))


@pytest.mark.slow
@pytest.mark.spawn
def test_an_error_of_the_user_is_a_result_and_a_dead_process_costs_a_retry() -> None:
    """A DptraceError is returned as raised; the item of a killed process is retried in this one."""
    results = run_parallel(elsewhere, [(number, os.getpid()) for number in (1, 2, 0)], 3)
    seen = dict(results)

    assert "pip install 'torch>=2.4'" in str(seen[0])
    assert {1: 2, 2: 0} == {index: result for index, result in seen.items() if index}


@pytest.mark.spawn
def test_what_does_not_arrive_costs_a_retry(tmp_path: Path) -> None:
    """A result, and an error that was raised, that can't be unpickled are those of this process; none is waited for."""
    kinds = ("wait", "wait", "error", "result")
    seen = dict(run_parallel(does_not_arrive, [(kind, os.getpid(), tmp_path) for kind in kinds], 2))

    assert ["wait", "wait", "a.json: is empty"] == [str(seen[index]) for index in range(3)]
    assert isinstance(seen[2], TwoArguments)
    assert isinstance(seen[3], OnlyOut)


@pytest.mark.spawn
def test_a_process_that_is_ended_removes_what_it_is_writing(tmp_path: Path) -> None:
    """After Ctrl-C or SIGTERM, no temporary file of another process is left."""
    with pytest.raises(KeyboardInterrupt):
        list(run_parallel(interrupted, [(tmp_path / name, os.getpid()) for name in ("a", "b")], 2))

    assert [] == list(tmp_path.iterdir())


@pytest.mark.spawn
def test_what_is_printed_meanwhile_does_no_harm(capfd: pytest.CaptureFixture[str]) -> None:
    """Results and the output of libraries do not mix."""
    assert {i: i for i in range(30)} == dict(run_parallel(prints, range(30), 2))


@pytest.mark.spawn
def test_a_script_without_a_main_guard_works_and_leaves_no_process(tmp_path: Path) -> None:
    """The caller's script does not run again in the workers, and these end with it, also after Ctrl-C."""
    script = tmp_path / "script.py"
    script.write_text(
        # A shell that runs the tests in the background makes their processes ignore Ctrl-C.
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "import sys, time; sys.path.insert(0, '.')\n"
        "from tests.core.test_subprocess_pool import double\n"
        "from dptrace.core.subprocess_pool import run_parallel\n"
        "print('once', flush=True)\n"
        "for i, r in run_parallel(double, range(2000), 2): print(r[1], flush=True)\n"
    )
    root = Path(__file__).parents[2]
    with subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, cwd=root, text=True) as process:
        assert process.stdout is not None
        first, seen = process.stdout.readline(), set[int]()
        # Until the worker has answered too, which starts late on a busy machine; 2,000 items take 100 s.
        while len(seen) < 2 and (line := process.stdout.readline()):
            seen.add(int(line))
        process.send_signal(signal.SIGINT)
        process.stdout.read()
    workers = seen - {process.pid}

    assert "once\n" == first
    assert 1 == len(workers)
    with pytest.raises(ProcessLookupError):
        os.kill(workers.pop(), 0)


# The garbage collector of reference cycles.


@pytest.mark.parametrize("enabled", [True, False])
def test_collection_is_paused_and_afterwards_as_before(enabled: bool) -> None:
    """Also after an error, and where the caller had disabled it."""
    (gc.enable if enabled else gc.disable)()
    try:
        with pytest.raises(ValueError, match="x"), collection_paused():
            assert not gc.isenabled()
            raise ValueError("x")
        assert enabled == gc.isenabled()
    finally:
        gc.enable()


def report(connection: int, write: int) -> None:
    """Answer one kind of message, and write to an inherited descriptor."""
    os.write(write, b"!")
    serve(connection, lambda asked: (dptrace.__file__, os.getsid(0) == os.getpid(), asked))


@pytest.mark.spawn
def test_a_process_has_our_modules_a_connection_descriptors_and_a_session_of_its_own() -> None:
    """It answers through its connection and descriptors, with the modules that this process would import."""
    read, write = os.pipe()
    process = PythonProcess("tests.core.test_subprocess_pool:report", write)
    try:
        process.connection.send("asked")
        assert (sys.modules["dptrace"].__file__, True, "asked") == process.connection.recv()
        assert b"!" == os.read(read, 1)
    finally:
        process.stop()
        os.close(read)
        os.close(write)
    assert process.process.poll() is not None
