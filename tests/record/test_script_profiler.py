"""Dptrace's profiler and the script's own in one process: at most one of them is open."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dptrace.errors import RecordingError
from tests.support.forking import run_python
from tests.support.recordings import dptrace

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("default")

from dptrace.record.script_profiler import ProfilerGuard, fill_with_nothing  # noqa: E402


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return the guard of this process, as new; nothing may be open at the end."""
    from dptrace.record import script_profiler as profiler_guard

    guard = profiler_guard.install()
    monkeypatch.setattr(guard, "_sentences", {})
    monkeypatch.setattr(guard, "foreign_seen", False)
    monkeypatch.setattr(guard, "on_foreign_start", None)
    yield guard
    assert not guard.is_open
    assert not guard.foreign_busy()


def _profile(**settings: Any) -> Any:
    return torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **settings)


def _scheduled(wait: int = 1) -> Any:
    return _profile(schedule=torch.profiler.schedule(wait=wait, warmup=1, active=2, repeat=1))


def _own(guard: Any, wait: int = 0) -> Any:
    """Return a profiler of dptrace's, prepared, in the first step of its warm-up."""
    profiler = _scheduled(wait)
    with guard.ours():
        profiler.start()
    return profiler


def _end(guard: Any, profiler: Any) -> None:
    with guard.ours():
        profiler.stop()


def _step(guard: Any, profiler: Any) -> None:
    with guard.ours():
        profiler.step()


def _names(profiler: Any, path: Path) -> list[str]:
    profiler.export_chrome_trace(str(path))
    return [event.get("name", "") for event in json.loads(path.read_text())["traceEvents"]]


def _in_thread(run: Callable[[], None]) -> None:
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()


def _work() -> None:
    torch.ones(2).mul(3)


def test_a_prepared_profiler_of_the_script_is_busy(guard: Any) -> None:
    """No flag of torch shows the warm-up; the guard does, until the end of the recorded steps."""
    script = _scheduled()
    busy = []
    with script:
        for _ in range(5):
            busy.append(guard.foreign_busy())
            script.step()

    assert [False, True, True, True, False] == busy
    assert 1 == len(guard.sentences())


@pytest.mark.parametrize("start", [lambda: _profile(), lambda: torch.autograd.profiler.profile()])
def test_each_kind_of_profiler_is_busy(guard: Any, start: Callable[[], Any]) -> None:
    """torch.profiler and torch.autograd.profiler share the methods that the guard wraps."""
    with start() as script:
        assert guard.foreign_busy()
        _work()

    assert not guard.foreign_busy()
    assert "aten::mul" in {event.key for event in script.key_averages()}


def test_a_profiler_on_another_thread_is_busy(guard: Any) -> None:
    """torch's own flag is set on its thread only."""
    started, go_on = threading.Event(), threading.Event()

    def run() -> None:
        with _profile():
            started.set()
            go_on.wait()

    thread = threading.Thread(target=run)
    thread.start()
    started.wait()
    busy = guard.foreign_busy()
    with pytest.raises(RecordingError):
        _own(guard)
    go_on.set()
    thread.join()

    assert busy


@pytest.mark.parametrize("own_steps", [0, 1, 2], ids=["warm-up", "first step", "second step"])
@pytest.mark.parametrize("wait", [0, 1])
def test_ours_ends_before_the_scripts_begins(guard: Any, tmp_path: Path, own_steps: int, wait: int) -> None:
    """Whatever ours has recorded is kept, and the script's trace is whole."""
    own = _own(guard)
    for _ in range(own_steps):
        _step(guard, own)
        _work()
    guard.on_foreign_start = lambda: _end(guard, own)
    with _scheduled(wait) as script:
        for _ in range(4):
            _work()
            script.step()

    expected = ["ProfilerStep#1", "ProfilerStep#2", "ProfilerStep#3"][wait : wait + 2]
    names = _names(script, tmp_path / "script.json")
    assert expected == sorted(name for name in names if name.startswith("ProfilerStep"))
    assert 2 == names.count("aten::mul")
    if own_steps:
        assert own_steps + wait == _names(own, tmp_path / "own.json").count("aten::mul")


@pytest.mark.parametrize("callback", [None, "fails", "forgets"])
@pytest.mark.parametrize("own_steps", [0, 1])
def test_the_script_goes_on_even_if_the_callback_does_not_end_ours(
    guard: Any, tmp_path: Path, callback: str | None, own_steps: int
) -> None:
    """The guard then ends the session itself, and says so."""
    own = _own(guard)
    for _ in range(own_steps):
        _step(guard, own)

    def fail() -> None:
        raise ValueError

    guard.on_foreign_start = {None: None, "fails": fail, "forgets": lambda: None}[callback]
    with _profile() as script:
        assert not guard.is_open
        _work()

    assert "aten::mul" in _names(script, tmp_path / "script.json")
    assert 1 == len(guard.sentences())


def test_the_scripts_profiler_on_another_thread_is_muted(guard: Any, tmp_path: Path) -> None:
    """Ours records on, and the methods of the muted profiler return an empty trace instead of raising."""
    own = _own(guard)
    _step(guard, own)
    found: list[Any] = []

    def run() -> None:
        with _profile() as script:
            _work()
        found.append(_names(script, tmp_path / "muted.json"))
        found.append(list(script.events()))
        found.append(len(script.key_averages()))
        found.append(script.key_averages().table())

    _in_thread(run)
    _work()
    _end(guard, own)

    assert [[], [], 0] == found[:3]
    assert "aten::mul" in _names(own, tmp_path / "own.json")
    assert 1 == len(guard.sentences())


def test_a_muted_profiler_records_again_after_ours(guard: Any, tmp_path: Path) -> None:
    """Only the session that began during ours is muted, not the object."""
    own = _own(guard)
    script = torch.autograd.profiler.profile()

    def run() -> None:
        script._prepare_trace()
        script._start_trace()
        script.__exit__(None, None, None)

    _in_thread(run)
    _end(guard, own)
    script._prepare_trace()
    script._start_trace()
    _work()
    script.__exit__(None, None, None)

    assert "aten::mul" in _names(script, tmp_path / "script.json")


def test_marks_of_the_scripts_waiting_profiler_stay_out_of_ours(guard: Any, tmp_path: Path) -> None:
    """A profiler marks its steps while it waits, with other numbers; ours would have each step twice."""
    with _scheduled(wait=9) as script:
        script.step()
        own = _own(guard)
        for _ in range(3):
            _step(guard, own)
            script.step()
        number = script.step_num
        script.step()

    marks = [name for name in _names(own, tmp_path / "own.json") if name.startswith("ProfilerStep")]
    assert ["ProfilerStep#1", "ProfilerStep#2"] == marks
    assert number + 1 == script.step_num


def test_a_session_that_an_error_left_open_is_replaced(guard: Any, tmp_path: Path) -> None:
    """A second recording of the process begins with a session of its own."""
    _own(guard)
    own = _own(guard)
    _step(guard, own)
    _work()
    _end(guard, own)

    assert "aten::mul" in _names(own, tmp_path / "own.json")


def test_a_profiler_that_cannot_start_is_not_busy(guard: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script sees its own error, and ours may start afterwards."""

    def fail(*arguments: Any, **keywords: Any) -> None:
        raise RuntimeError("no events")

    monkeypatch.setattr("torch.autograd.profiler._prepare_profiler", fail)
    with pytest.raises(RuntimeError, match="no events"), _profile():
        pass

    assert not guard.foreign_busy()


def test_emit_itt_ends_ours_too(guard: Any) -> None:
    """Such a context enables the profiler of its thread, which raises while ours records there."""
    own = _own(guard)
    _step(guard, own)
    guard.on_foreign_start = lambda: _end(guard, own)
    try:
        with torch.autograd.profiler.emit_itt():
            assert guard.foreign_busy()
            assert not guard.is_open
    except (RuntimeError, AttributeError, ImportError) as error:
        pytest.skip(f"this torch has no ITT: {error}")


def test_a_torch_with_other_methods_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later version may rename what is wrapped; then nothing is wrapped, and the notes say so."""
    from torch.autograd.profiler import profile

    guard, before = ProfilerGuard(), profile.__exit__
    monkeypatch.delattr(profile, "_prepare_trace")
    guard.wrap_profilers()

    assert 1 == len(guard.sentences())
    assert before is profile.__exit__


def test_dynolog_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """What dptrace cannot detect it says beforehand."""
    monkeypatch.setenv("KINETO_USE_DAEMON", "1")

    (sentence,) = ProfilerGuard().sentences()
    assert "KINETO_USE_DAEMON" in sentence


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.spawn
@pytest.mark.slow
def test_a_forked_child_does_not_end_the_parents_recording(tmp_path: Path) -> None:
    """A profiler of the child is muted, since the child inherits the open session."""
    script = """
import os, sys, torch
from dptrace.record import script_profiler as profiler_guard
guard = profiler_guard.install()
own = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
with guard.ours():
    own.start()
guard.on_foreign_start = lambda: os._exit(9)
child = os.fork()
if child == 0:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        torch.ones(2)
    os._exit(0 if not profiler.events() else 8)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
with guard.ours():
    own.stop()
os._exit(code)
"""
    (tmp_path / "forks.py").write_text(script)
    ended = run_python("forks.py", cwd=tmp_path)

    assert 0 == ended.returncode, ended.stderr


SELF_PROFILING = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank, who = dist.get_rank(), sys.argv[2]
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
profiler = torch.profiler.profile(
    activities=[torch.profiler.ProfilerActivity.CPU],
    schedule=torch.profiler.schedule(wait=int(sys.argv[1]), warmup=1, active=3, repeat=1),
    on_trace_ready=lambda profiler: profiler.export_chrome_trace(f"own{rank}.json"),
)
profiled = who == "all" or rank == 0
profiled and profiler.start()
for _ in range(30):
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    profiled and profiler.step()
profiled and profiler.stop()
open(f"trained{rank}", "w").close()
dist.destroy_process_group()
"""


@pytest.mark.spawn
@pytest.mark.slow
@pytest.mark.parametrize(
    ("wait", "who", "recorded"),
    [
        (2, "rank 0", 4),  # starts in dptrace's warm-up, on one rank only
        (7, "all", 2),  # starts among the recorded steps
    ],
)
def test_a_script_that_profiles_itself_is_recorded(tmp_path: Path, wait: int, who: str, recorded: int) -> None:
    """No crash; training completes; the script's traces are whole; ours has its steps or a note says why not."""
    (tmp_path / "train.py").write_text(SELF_PROFILING)
    options = ["--gpus", "2", "--steps", "4", "--warmup", "2", "--wait", "2", "-o", "run"]
    ended = dptrace("record", *options, "train.py", str(wait), who, cwd=tmp_path, ok=False)

    assert 0 == ended.returncode, ended.stderr
    assert 2 == len(list(tmp_path.glob("trained*")))
    own = [json.loads(path.read_text())["traceEvents"] for path in tmp_path.glob("own*.json")]
    assert (2 if who == "all" else 1) == len(own)
    marks = {event["name"] for events in own for event in events if event.get("name", "").startswith("ProfilerStep")}
    assert {f"ProfilerStep#{wait + step}" for step in (1, 2, 3)} == marks
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert [recorded, recorded] == [rank["recorded_steps"] for rank in info["ranks"]]
    assert recorded == 4 or any(f"{recorded} of 4 steps" in note for note in info["notes"])


# The empty result of a profiler that could not run.


def test_older_versions_of_torch_get_an_empty_list_of_events() -> None:
    """Torch 2.4 keeps the events in an attribute, which its methods require; later versions derive them."""
    old = SimpleNamespace(function_events=None)
    fill_with_nothing(old)

    assert 0 == len(old.function_events)
    assert 0 == old.kineto_results.trace_start_ns() == len(old.kineto_results.experimental_event_tree())
    assert 0 == len(old.kineto_results.trace_activities())
