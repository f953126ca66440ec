"""The trace of a script's own profiler, taken as the recording."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dptrace.record.messages import LauncherSettings
from tests.support.recordings import dptrace

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("default", "ignore:Warning. Profiler clears events")  # torch's own


@pytest.fixture
def adopt(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[], Any]:
    """Return a function that begins to adopt the traces of this process, into the folder ``run``."""
    from dptrace.record.script.profiler_steps import ScriptProfilerSteps

    for name in ("start_trace", "stop_trace"):  # restores what the constructor replaces
        monkeypatch.setattr(torch.profiler.profile, name, getattr(torch.profiler.profile, name))
    monkeypatch.setattr("dptrace.record.recording._latest", None)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "run").mkdir()
    return lambda: ScriptProfilerSteps(LauncherSettings(str(tmp_path / "run"), "run", use_script_profiler=True))


def _train(steps: int, **settings: Any) -> Any:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], **settings) as profiler:
        for _ in range(steps):
            torch.ones(2).mul(3)
            profiler.step()
    return profiler


def _plan(**numbers: int) -> Any:
    return torch.profiler.schedule(**{"wait": 1, "warmup": 1, "active": 2} | numbers)


def _piece(tmp_path: Path) -> Any:
    return json.loads((tmp_path / "run" / "window1" / "rank0.piece.json").read_text())


def _marks(text: bytes | str) -> list[str]:
    names = [event.get("name", "") for event in json.loads(text)["traceEvents"]]
    return sorted(name for name in names if name.startswith("ProfilerStep"))


@pytest.mark.slow
def test_the_first_trace_is_the_run_and_the_scripts_own_is_whole(adopt: Callable[[], Any], tmp_path: Path) -> None:
    """The script saves its traces as before, and a second one is only counted."""
    steps = adopt()
    own: list[Path] = []

    def ready(profiler: Any) -> None:
        own.append(tmp_path / f"own{len(own)}.json")
        profiler.export_chrome_trace(str(own[-1]))
        assert profiler.key_averages()

    _train(9, schedule=_plan(repeat=2), on_trace_ready=ready, record_shapes=True)
    steps.after_optimizer(torch.optim.SGD([torch.ones(3, requires_grad=True)], lr=0.1))
    steps.close(None)

    assert [["ProfilerStep#2", "ProfilerStep#3"], ["ProfilerStep#6", "ProfilerStep#7"]] == [
        _marks(path.read_text()) for path in own
    ]
    piece = _piece(tmp_path)
    assert (2, 0, 1) == (piece["recorded_steps"], piece["rank"], piece["world_size"])
    assert "1 further trace" in piece["notes"][-1]
    with gzip.open(tmp_path / "run" / "window1" / piece["file"]) as file:
        assert ["ProfilerStep#2", "ProfilerStep#3"] == _marks(file.read())
    assert [] == list((tmp_path / "temporary").glob("dptrace_*"))


def test_a_trace_that_the_script_does_not_save_is_kept_too(adopt: Callable[[], Any], tmp_path: Path) -> None:
    """Many scripts only print a table."""
    steps = adopt()
    steps.after_optimizer(torch.optim.SGD([torch.ones(3, requires_grad=True)], lr=0.1))
    _train(4, schedule=_plan(repeat=1), record_shapes=True)
    steps.close(None)

    assert (2, 3) == (_piece(tmp_path)["recorded_steps"], _piece(tmp_path)["parameters"])
    assert 1 == len(_piece(tmp_path)["notes"])


@pytest.mark.parametrize("suffix", ["json", "json.gz"])
def test_the_script_may_save_its_trace_later(adopt: Callable[[], Any], tmp_path: Path, suffix: str) -> None:
    """After the with block, as in torch's own examples."""
    steps = adopt()
    path = tmp_path / f"own.{suffix}"
    _train(4, schedule=_plan(repeat=1)).export_chrome_trace(str(path))
    steps.close(None)

    text = gzip.decompress(path.read_bytes()) if suffix == "json.gz" else path.read_bytes()
    assert ["ProfilerStep#2", "ProfilerStep#3"] == _marks(text)


@pytest.mark.parametrize(
    ("settings", "steps", "expected"),
    [
        ({}, 3, (1, "schedule")),
        ({"schedule": lambda step: torch.profiler.ProfilerAction.RECORD}, 0, (1, "first step")),
        ({"schedule": _plan}, 3, (1, "shapes")),
    ],
)
def test_what_a_trace_lacks_is_said(
    adopt: Callable[[], Any], tmp_path: Path, settings: dict[str, Any], steps: int, expected: tuple[int, str]
) -> None:
    """No schedule, no whole step, no shapes: the notes say what is missing."""
    settings = {key: _plan() if value is _plan else value for key, value in settings.items()}
    adopting = adopt()
    _train(steps, **settings)
    adopting.close(None)

    piece = _piece(tmp_path)
    assert expected[0] == piece["recorded_steps"]
    assert any(expected[1] in note for note in piece["notes"][1:])


def test_a_path_that_cannot_be_written_does_not_end_the_script(
    adopt: Callable[[], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The script's save() only prints a failure, as torch's does, and the run is kept."""
    steps = adopt()
    _train(4, schedule=_plan(repeat=1)).export_chrome_trace(str(tmp_path / "missing" / "own.json"))
    steps.close(None)

    assert "missing" in capsys.readouterr().err
    assert 2 == _piece(tmp_path)["recorded_steps"]


def test_a_failure_is_reported(adopt: Callable[[], Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A script that fails is reported like any other."""
    settings = LauncherSettings(str(tmp_path / "run"), "run", use_script_profiler=True)
    for name, value in settings.environment().items():
        monkeypatch.setenv(name, value)
    adopt().close(ValueError("boom"))

    assert "ValueError: boom" == json.loads((tmp_path / "run" / "rank0.failure.json").read_text())["message"]


SCRIPT = """
import sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
weight = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(weight.parameters(), lr=0.1)
profiler = torch.profiler.profile(
    activities=[torch.profiler.ProfilerActivity.CPU],
    schedule=torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=int(sys.argv[2])),
    record_shapes=True,
)
who = sys.argv[1]
profiled = who == "all" or who == "first" and dist.get_rank() == 0
profiled and profiler.start()
for _ in range(6 if sys.argv[2] == "1" else 20):
    weight(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    profiled and profiler.step()
profiled and profiler.stop()
dist.destroy_process_group()
"""


@pytest.mark.slow
@pytest.mark.spawn
@pytest.mark.parametrize(("who", "ranks"), [("all", [0, 1]), ("first", [0]), ("none", [])])
def test_a_job_is_recorded_with_its_own_profiler(tmp_path: Path, who: str, ranks: list[int]) -> None:
    """Ranks that profile themselves are the run; a job without any ends well, and is told what to do."""
    (tmp_path / "train.py").write_text(SCRIPT)
    options = ["--gpus", "2", "--use-script-profiler", "-o", "run", "train.py", who, "1"]
    ended = dptrace("record", *options, cwd=tmp_path, ok=False)

    if not ranks:
        assert 0 == ended.returncode
        assert "--use-script-profiler" in ended.stderr
        assert "Traceback" not in ended.stderr
        assert ["train.py"] == [path.name for path in tmp_path.iterdir()]
        return
    assert 0 == ended.returncode, ended.stderr
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert (ranks, 2) == ([rank["rank"] for rank in info["ranks"]], info["world_size"])
    assert {2} == {rank["recorded_steps"] for rank in info["ranks"]}
    assert len(ranks) == 2 or any("1 rank of 2 (0)" in note for note in info["notes"])


@pytest.mark.slow
@pytest.mark.spawn
@pytest.mark.parametrize(("who", "ranks"), [("all", [0, 1]), ("first", [0])])
def test_a_script_whose_profiler_leaves_no_room_is_recorded_by_it(tmp_path: Path, who: str, ranks: list[int]) -> None:
    """Without being asked: it cycles, so that there is never time for a warm-up and a recorded step."""
    (tmp_path / "train.py").write_text(SCRIPT)
    dptrace("record", "--gpus", "2", "--steps", "4", "-o", "run", "train.py", who, "0", cwd=tmp_path)

    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert ("complete", ranks) == (info["status"], [rank["rank"] for rank in info["ranks"]])
    assert {2} == {rank["recorded_steps"] for rank in info["ranks"]}
    assert any("its trace is the run" in note for note in info["notes"])
    assert all((tmp_path / "run" / rank["file"]).exists() for rank in info["ranks"])
