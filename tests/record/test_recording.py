"""Recording a user's own loop, in one process."""

from __future__ import annotations

import gzip
import json
import re
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dptrace.errors import UsageError
from dptrace.record.messages import LauncherSettings, request_path
from tests.support.forking import run_python
from tests.support.recordings import environment

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("default")  # torch's own, which differ from version to version


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Start in an empty folder, in a process that has recorded nothing and not used a GPU."""
    monkeypatch.setattr("dptrace.record.recording._latest", None)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: False)
    monkeypatch.chdir(tmp_path)


def _train(passes: int, **settings: Any) -> None:
    from dptrace.record import phase, record

    weight = torch.ones(4, requires_grad=True)
    with record(**settings) as recording:
        for step in range(passes):
            with phase("forward"):
                loss = (weight * step).sum()
            loss.backward()
            recording.step(loss)


def _names(path: Path) -> list[str]:
    with gzip.open(path) as file:
        return [event["name"] for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]


def _steps(path: Path) -> set[str]:
    return {name for name in _names(path) if name.startswith("ProfilerStep")}


def test_a_loop_of_ones_own_is_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Steps after the end of the schedule are not recorded, and the losses are those of the steps."""
    _train(12, out="runs/mine", steps=2, warmup=2, options={"model": "mine", "width": 4})

    info = json.loads(Path("runs/mine/run.json").read_text())
    assert "Wrote runs/mine. Next: dptrace analyze runs/mine" in capsys.readouterr().err
    assert ("mine", {"width": 4}, sys.argv[0]) == (info["model"], info["options"], info["script"])
    assert [4.0 * step for step in range(4)] == info["losses"]
    assert 2 == len(info["ranks"][0]["profiled_ns"])
    names = _names(Path("runs/mine/rank0.pt.trace.json.gz"))
    assert {"ProfilerStep#2", "ProfilerStep#3"} == {name for name in names if name.startswith("ProfilerStep")}
    assert 2 == names.count("dptrace::forward")


@pytest.mark.heavy
def test_the_last_step_ends_before_the_profiler_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait before the profiler is turned off is no pause of the training."""
    from dptrace.record.gloo import GlooThreads

    def wait(threads: GlooThreads) -> bool:
        time.sleep(0.3)
        return True

    monkeypatch.setattr(GlooThreads, "wait_until_idle", wait)
    _train(4, out="x", steps=2, warmup=2, wait=0)
    with gzip.open("x/rank0.pt.trace.json.gz") as file:
        steps = [event for event in json.load(file)["traceEvents"] if event.get("name") == "ProfilerStep#3"]

    assert 0 < max(event["dur"] for event in steps if event.get("ph") == "X") < 300_000


@pytest.mark.parametrize("memory", [True, False])
def test_allocations_and_frees_are_recorded_on_request(memory: bool) -> None:
    """By torch's allocator of the CPU here; each recorded step allocates what it computes."""
    _train(6, out="runs/mine", steps=2, warmup=2, memory=memory)

    text = gzip.decompress(Path("runs/mine/rank0.pt.trace.json.gz").read_bytes())
    assert memory is (text.count(b'"[memory]"') >= 4)
    assert memory is (b'"[memory]"' in text)


@pytest.mark.heavy
def test_the_overhead_is_measured_after_the_recorded_steps() -> None:
    """Of a loop that goes on, windows with and without the profiler alternate, and run.json is updated."""
    _train(40, out="x", steps=2, warmup=2)

    info = json.loads(Path("x/run.json").read_text())
    windows = info["ranks"][0]["overhead_windows"]
    assert [False, True, False, True, False] == [window["profiled"] for window in windows]
    assert all(2 == len(window["step_ns"]) for window in windows)
    assert 6 == len(info["ranks"][0]["unprofiled_ns"])
    low, high = info["profiler_overhead_range"]
    assert low < high
    assert isinstance(info["profiler_cpu_overhead"], float)
    assert 4 == len(info["losses"])


@pytest.mark.parametrize(
    ("passes", "settings", "steps", "windows", "notes"),
    [
        (21, {"steps": 2, "wait": 17}, range(19, 21), 5, []),  # the overhead is measured in the wait
        (5, {"steps": 2, "wait": 0}, range(2, 4), 0, []),  # the loop ends when it is recorded
        (9, {"steps": 2, "wait": 17}, range(6, 8), 2, [{"9", "19"}]),  # what measures the overhead is the run
        (5, {"steps": 8, "wait": 0}, range(2, 5), 0, [{"3", "8", "5"}]),  # 3 of 8, and a part of step 5
    ],
)
def test_what_is_recorded_fits_the_loop(
    passes: int, settings: dict[str, int], steps: range, windows: int, notes: list[set[str]], tmp_path: Path
) -> None:
    """Whole steps are kept wherever a loop ends; a note says why there are fewer, or others."""
    _train(passes, out="x", warmup=2, **settings)

    info = json.loads(Path("x/run.json").read_text())
    (rank,) = info["ranks"]
    assert ("complete", len(steps), len(steps)) == (info["status"], rank["recorded_steps"], len(rank["profiled_ns"]))
    assert {f"ProfilerStep#{step}" for step in steps} <= _steps(Path("x/rank0.pt.trace.json.gz"))
    assert windows == len(rank["overhead_windows"])
    assert len(notes) == len(info["notes"])
    assert all(numbers <= set(re.findall(r"\d+", note)) for numbers, note in zip(notes, info["notes"], strict=True))
    assert ["x"] == [path.name for path in tmp_path.iterdir()]


def test_a_loop_that_is_too_short_is_reported_and_does_no_harm(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Training that ends before recording begins leaves no run, and does not fail because of it."""
    _train(4, out="x", steps=2, warmup=2, wait=2)

    assert "made 4 steps, and recording begins after 4" in capsys.readouterr().err
    assert [] == list(tmp_path.iterdir())


def test_a_loop_that_fails_keeps_its_trace_under_an_honest_name() -> None:
    """The exception propagates; the run is kept as failed, with the reason."""
    from dptrace.record import record

    with pytest.raises(ZeroDivisionError), record("x", steps=8, warmup=2, wait=0) as recording:
        for step in range(6):
            torch.ones(4).sum()
            recording.step()
            1 // (4 - step)

    info = json.loads(Path("x.failed/run.json").read_text())
    assert "failed" == info["status"]
    assert info["failure"]["message"].startswith("ZeroDivisionError: ")
    assert ["x.failed"] == [path.name for path in Path().iterdir()]


def test_a_second_recording_in_the_first_stands_back(tmp_path: Path) -> None:
    """A process has one profiler: the inner recording does nothing, and a note in the outer one says so."""
    from dptrace.record import record

    with record("outer", steps=1, warmup=2, wait=0) as outer, record("inner", steps=1, warmup=2, wait=0) as inner:
        for _ in range(4):
            inner.step()
            outer.step()

    assert ["outer"] == [path.name for path in tmp_path.iterdir()]
    assert "another recording" in json.loads(Path("outer/run.json").read_text())["notes"][0]


def test_a_recording_that_is_used_again_does_no_harm(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is closed twice and begun again: the first run stays as it is, and one sentence says so."""
    from dptrace.record import record

    recording = record("run", steps=1, warmup=2, wait=0)
    runs = []
    for _ in range(2):
        with recording:
            for _ in range(4):
                recording.step()
        recording.close()
        runs.append({path.name: path.read_bytes() for path in Path("run").iterdir()})

    assert runs[0] == runs[1]
    assert 1 == capsys.readouterr().err.count("another recording")


@pytest.mark.heavy
def test_what_is_there_is_not_overwritten() -> None:
    """A run stays until force replaces it; its name defaults to that of the script."""
    _train(4, steps=1, warmup=2, wait=0)
    stem = Path(sys.argv[0]).stem
    with pytest.raises(UsageError, match="--force"):
        _train(4, steps=1, warmup=2, wait=0)
    _train(4, steps=2, warmup=2, wait=0, force=True)

    assert 2 == json.loads(Path("runs", stem, "run.json").read_text())["schedule"]["steps"]


def _launch(monkeypatch: pytest.MonkeyPatch, staging: Path, **settings: Any) -> None:
    """Make this process a rank of a launcher that keeps its files in *staging*."""
    monkeypatch.setattr("dptrace.record.windows._POLL_NS", 0)
    for name, value in LauncherSettings(str(staging), "x", script=True, **settings).environment().items():
        monkeypatch.setenv(name, value)


@pytest.mark.heavy
def test_a_window_on_request_does_not_take_the_place_of_a_planned_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs are numbered in the order in which they are recorded, and each has a folder of its own."""
    from dptrace.record import record

    _launch(monkeypatch, tmp_path / "staging", steps=1, warmup=2, wait=20)
    with record() as recording:
        request_path(tmp_path / "staging", 1).write_text('{"kind": "record"}')
        for _ in range(30):
            torch.ones(4).sum()
            recording.step()

    pieces = [json.loads((tmp_path / "staging" / f"window{n}" / "rank0.piece.json").read_text()) for n in (1, 2)]
    assert [1, 1] == [piece["recorded_steps"] for piece in pieces]
    assert pieces[0]["schedule"]["wait"] < 20 == pieces[1]["schedule"]["wait"]


@pytest.mark.heavy
def test_a_window_on_request_between_those_that_measure_the_overhead_leaves_it_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher waits for the overhead before it ends a training."""
    from dptrace.record import record

    staging = tmp_path / "staging"
    _launch(monkeypatch, staging, steps=1, warmup=2, wait=0, on_demand=True)
    # Several ranks agree on a step ahead, so that a window may begin between others.
    asked = [(0, "record", 0), (5, "overhead", 10), (6, "record", 20)]
    requests = {step: SimpleNamespace(kind=kind, first=first) for step, kind, first in asked}
    monkeypatch.setattr("dptrace.record.windows.WindowRequests.poll", lambda self, step: requests.get(step))
    with record() as recording:
        for _ in range(60):
            torch.ones(4).sum()
            recording.step()

    overhead = json.loads((staging / "rank0.overhead.json").read_text())["overhead_windows"]
    assert [False, True, False, True, False] == [window["profiled"] for window in overhead]
    assert (staging / "window2" / "rank0.piece.json").exists()


def test_what_goes_wrong_in_the_recording_leaves_a_note() -> None:
    """A loss with several values and an option that JSON lacks cost neither training nor trace."""
    from dptrace.record import record

    with record("x", steps=1, warmup=2, wait=0, options={"dtype": torch.float32}) as recording:
        for _ in range(3):
            recording.step(torch.ones(4))

    info = json.loads(Path("x/run.json").read_text())
    assert ("complete", [], {"dtype": "torch.float32"}) == (info["status"], info["losses"], info["options"])
    (note,) = info["notes"]
    assert note.startswith("The losses could not be read: ")
    assert Path("x/rank0.pt.trace.json.gz").exists()


@pytest.mark.parametrize("method", ["finish", "step"])
def test_an_error_of_the_profiler_hides_no_error_of_the_training(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """After a CUDA error all later calls fail too: the script's own error propagates, and no folder stays.

    The recorder's is told once, also where two ends of the training close the recording.
    """
    from dptrace.record import record

    def fail(self: object) -> None:
        raise RuntimeError("CUDA error: again")

    monkeypatch.setattr(f"dptrace.record.profiler.AlignedProfile.{method}", fail)
    with pytest.raises(ValueError, match="mine"), record("x", steps=2, warmup=2, wait=0) as recording:
        recording.step()
        raise ValueError("mine")

    recording.close()
    assert 1 == capsys.readouterr().err.count("The recording failed: RuntimeError: CUDA error: again")
    assert recording.is_over
    assert [] == list(tmp_path.iterdir())


SPAWNED = """
import gc, sys
import torch, torch.distributed as dist, torch.multiprocessing
from dptrace.record import record

def train(rank, size, store):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    with record("mine", steps=1, warmup=2, wait=0, model=model) as recording:
        for _ in range(3):
            loss = model(torch.ones(2, 4)).mean()
            loss.backward()
            recording.step(loss)
        del model, loss
        gc.collect()  # DDP's cycles keep the group; left to the interpreter's end, torch now and then aborts there
        dist.destroy_process_group()

if __name__ == "__main__":
    torch.multiprocessing.start_processes(train, (2, sys.argv[1]), nprocs=2, start_method="fork")
"""


@pytest.mark.slow
@pytest.mark.spawn
def test_ranks_that_a_script_spawns_record_one_run(tmp_path: Path) -> None:
    """Without environment variables, rank and store come from the process group, also after its end."""
    (tmp_path / "spawn.py").write_text(SPAWNED)
    unset = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
    bare = {name: value for name, value in environment().items() if name not in unset}
    done = run_python("spawn.py", str(tmp_path / "store"), cwd=tmp_path, env=bare)

    assert 0 == done.returncode, done.stderr
    assert "Wrote mine." in done.stderr
    info = json.loads((tmp_path / "mine" / "run.json").read_text())
    assert (2, [0, 1], []) == (info["world_size"], [rank["local_rank"] for rank in info["ranks"]], info["notes"])
    assert (tmp_path / "mine" / "rank1.pt.trace.json.gz").exists()


def _train_with_own_profiler(passes: int, own_wait: int, **settings: Any) -> Path:
    """Train with a profiler in the loop that records 3 steps after one of warm-up; return the script's trace."""
    from dptrace.record import record

    weight = torch.ones(4, requires_grad=True)
    own = torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        schedule=torch.profiler.schedule(wait=own_wait, warmup=1, active=3, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace("own.json"),
    )
    with own, record("x", **settings) as recording:
        for _ in range(passes):
            (weight * 2).sum().backward()
            recording.step()
            own.step()
    return Path("own.json")


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("own_wait", "recorded", "note"),
    [
        (0, 4, "waited"),  # active when dptrace's would be prepared
        (2, 4, "waited"),  # starts in dptrace's warm-up
        (4, 4, "waited"),  # starts in the first recorded step
        (5, 1, "1 of 4 steps"),
        (7, 3, "3 of 4 steps"),
        (9, 4, None),  # after the recording
    ],
)
def test_a_loop_with_its_own_profiler_keeps_its_trace(own_wait: int, recorded: int, note: str | None) -> None:
    """Both traces are whole, or dptrace's is shorter and a note says so; no step has the mark of both."""
    own = _train_with_own_profiler(24, own_wait, steps=4, warmup=2, wait=2)

    info = json.loads(Path("x/run.json").read_text())
    assert recorded == info["ranks"][0]["recorded_steps"] == len(info["ranks"][0]["profiled_ns"])
    assert (note is not None) == any(note in text for text in info["notes"] if note)
    assert note is not None or [] == info["notes"]
    own_names = [event.get("name", "") for event in json.loads(own.read_text())["traceEvents"]]
    expected = [f"ProfilerStep#{own_wait + step}" for step in (1, 2, 3)]
    assert expected == sorted((n for n in own_names if n.startswith("ProfilerStep")), key=lambda n: int(n[13:]))
    assert 6 == own_names.count("aten::mul")  # forward and backward
    marks = _steps(Path("x/rank0.pt.trace.json.gz"))
    begin = info["schedule"]["wait"] + info["schedule"]["warmup"]
    assert {f"ProfilerStep#{begin + step}" for step in range(recorded + (recorded < 4))} == marks


def test_a_profiler_that_never_ends_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """A recording that found no gap says why and what to do."""
    _train_with_own_profiler(3, 0, steps=4, warmup=2, wait=0)

    assert "--use-script-profiler" in capsys.readouterr().err
    assert not Path("x").exists()
