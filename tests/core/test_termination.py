"""Signals that end a process."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dptrace.core.termination import Terminated, end_on_signals, end_retries, signals_held
from dptrace.record.processes import catch_signals
from tests.support.kineto_files import KinetoFile, training_step
from tests.support.paths import ROOT


@pytest.fixture(autouse=True)
def default_handlers() -> Iterator[None]:
    """Begin as a new process does, and restore pytest's handlers."""
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGALRM)
    before = {number: signal.getsignal(number) for number in numbers}
    for number in numbers[:2]:
        signal.signal(number, signal.SIG_DFL)
    yield
    end_retries()
    for number, handler in before.items():
        signal.signal(number, handler)


@contextmanager
def ending() -> Iterator[list[Terminated]]:
    """Expect Terminated, and end its retries while it is handled: later, one would reach pytest."""
    ended: list[Terminated] = []
    try:
        yield ended
    except Terminated as error:
        end_retries()
        ended.append(error)
    assert ended, "not ended"


@pytest.mark.heavy
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_is_an_exception_and_others_do_not_disturb(number: signal.Signals) -> None:
    """The cleaning up is done, and the exit code is a shell's."""
    end_on_signals()
    cleaned = []
    with ending() as ended:
        try:
            os.kill(os.getpid(), number)
            time.sleep(10)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGHUP)
            time.sleep(0.3)
            cleaned.append(True)

    assert ([True], 128 + number) == (cleaned, ended[0].exit_code)


@pytest.mark.heavy
def test_code_that_swallows_the_exception_only_delays_it() -> None:
    """It is raised again after the block that caught it, and in the end."""
    end_on_signals()
    with ending():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except Terminated:
            time.sleep(0.2)  # what cleans up may take its time
        time.sleep(10)


def test_an_import_is_not_interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Libraries take any error there as a module that is missing, and go on without it."""
    (tmp_path / "signalled.py").write_text("import os, signal, time; os.kill(os.getpid(), signal.SIGTERM); DONE = True")
    monkeypatch.syspath_prepend(tmp_path)
    end_on_signals()
    with ending():
        assert importlib.import_module("signalled").DONE
        time.sleep(10)


@pytest.mark.heavy
def test_other_code_may_take_the_signals_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher that only notes signals notes the one that came during an import before."""
    (tmp_path / "early.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("dptrace.core.termination._RETRY_S", 0.5)
    end_on_signals()
    importlib.import_module("early")
    with catch_signals() as signals:
        time.sleep(0.6)

        assert [signal.SIGTERM] == signals.numbers


def test_what_is_ignored_stays_ignored() -> None:
    """nohup lets a command live on without its terminal."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    end_on_signals()
    os.kill(os.getpid(), signal.SIGHUP)


@pytest.mark.parametrize(("number", "error"), [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_waits_for_what_can_not_be_done_by_halves(number: signal.Signals, error: type[BaseException]) -> None:
    """It arrives after the block, and Ctrl-C too."""
    if number == signal.SIGINT:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    else:
        end_on_signals()
    done = []
    with pytest.raises(error):
        try:
            with signals_held():
                os.kill(os.getpid(), number)
                done.append(True)
            time.sleep(10)
        except Terminated:
            end_retries()
            raise

    assert [True] == done


WRITERS = {
    "cp": ["cp", "naive", "."],
    "export": ["export", "{trace}", "-o", "all.pftrace", "--no-cache"],
    "the cache": ["analyze", "{trace}", "--json"],
}
_SIGNALLED = """
import os, pathlib, signal, sys
rename, part = pathlib.Path.replace, []
def interrupted(self, target):
    assert self.stat().st_size, self
    print(self.name)
    sys.stdout.flush()
    os.kill(os.getpid(), signal.{name})
    return rename(self, target)
pathlib.Path.replace = interrupted
from dptrace.commands.shared.main import main
main()
"""


@pytest.mark.heavy
@pytest.mark.parametrize("writer", WRITERS)
def test_a_signal_while_a_file_is_written_leaves_nothing(writer: str, tmp_path: Path) -> None:
    """At the last moment, the whole content is in a temporary file: it is removed, and the shell's code is returned."""
    (here := tmp_path / "here").mkdir()
    trace = training_step(KinetoFile(), 1, 0).write(tmp_path / "rank0.json")
    name = "SIGHUP" if writer == "cp" else "SIGTERM"
    done = subprocess.run(
        [sys.executable, "-c", _SIGNALLED.format(name=name), *(word.format(trace=trace) for word in WRITERS[writer])],
        env={**os.environ, "PYTHONPATH": str(ROOT), "DPTRACE_CACHE": str(here), "TMPDIR": str(here)},
        cwd=here,
        capture_output=True,
        text=True,
    )

    assert ".part" in done.stdout
    assert (128 + signal.Signals[name], []) == (done.returncode, list(here.iterdir())), done.stderr
    assert "" == done.stderr


_INTERRUPTING = """
import atexit, os, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {moment!r}:
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it
sys.meta_path.insert(0, Finder())
if {moment!r} == "the end":
    atexit.register(os.kill, os.getpid(), signal.SIGINT)
"""


@pytest.mark.spawn
@pytest.mark.heavy
@pytest.mark.parametrize(
    "moment", ["dptrace.core.termination", "click", "dptrace.commands.analyze", "numpy.linalg", "the end"]
)
def test_ctrl_c_while_a_command_starts_or_ends_is_no_traceback(moment: str, tmp_path: Path) -> None:
    """Imports take most of a short command's time; the exit code is 130."""
    (tmp_path / "sitecustomize.py").write_text(_INTERRUPTING.format(moment=moment))
    trace = training_step(KinetoFile(), 1, 0).write(tmp_path / "rank0.json")
    done = subprocess.run(
        [sys.executable, "-m", "dptrace", "analyze", str(trace), "--json"],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "DPTRACE_CACHE": str(tmp_path)},
        capture_output=True,
        text=True,
    )

    assert 130 == done.returncode, done.stderr
    assert done.stderr in ("", "\nInterrupted.\n")
    assert bool(done.stdout) == (moment == "the end")
