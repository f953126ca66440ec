"""What-ifs on timelines of pipeline stages: the ideal step and the cause, on planted and on published jobs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dptrace
from dptrace.commands.shared.main import cli
from tests.support.real_traces import REAL, needs_real_traces
from tests.support.stage_timelines import stage_events, write_stages

_BASE = {"forward": 40_000.0, "backward": 80_000.0}


def even(way: str, stage: int, replica: int, step: int, batch: int) -> float:
    """Every stage, replica and micro-batch takes the same time."""
    return _BASE[way]


def slow_worker(way: str, stage: int, replica: int, step: int, batch: int) -> float:
    """Stage 1 of replica 2 computes 1.8 times as long."""
    return _BASE[way] * (1.8 if (stage, replica) == (1, 2) else 1)


def uneven_stages(way: str, stage: int, replica: int, step: int, batch: int) -> float:
    """The last stage computes 1.6 times as long."""
    return _BASE[way] * (1.6 if stage == 2 else 1)


def uneven_sequences(way: str, stage: int, replica: int, step: int, batch: int) -> float:
    """Micro-batches are short or long, alike in both phases and on all stages."""
    return _BASE[way] * (0.5 + (replica * 7 + step * 5 + batch * batch * 3) % 4 / 2)


def noise(way: str, stage: int, replica: int, step: int, batch: int) -> float:
    """Compute varies as sequences do, but not alike in phases and stages."""
    mixed = (len(way) * 31 + stage * 17 + replica * 7 + step * 5 + batch * 11) * 2654435761 % 1009
    return _BASE[way] * (0.5 + mixed % 4 / 2)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("planted", "verdict"),
    [
        (even, "even"),
        (slow_worker, "worker"),
        (uneven_stages, "stages"),
        (uneven_sequences, "sequences"),
        (noise, "unknown"),
    ],
)
def test_the_planted_cause_is_found(planted: Callable[..., float], verdict: str, tmp_path: Path) -> None:
    """The replay gives the recorded step, the ideal is that of a job with mean durations, and the cause is named."""
    places = [
        (stage, replica, step, batch)
        for stage in range(3)
        for replica in range(4)
        for step in range(3)
        for batch in range(6)
    ]
    mean = {way: sum(planted(way, *place) for place in places) / len(places) for way in _BASE}
    level = dptrace.stage_whatif(write_stages(tmp_path / "level.json.gz", lambda way, *_: mean[way], 3, 4))

    answer = dptrace.stage_whatif(write_stages(tmp_path / "planted.json.gz", planted, 3, 4))

    assert answer["replayed_step_ns"] == pytest.approx(answer["recorded_step_ns"], rel=1e-6)
    assert answer["ideal_step_ns"] == pytest.approx(level["recorded_step_ns"], rel=1e-3)
    assert answer["verdict"] == verdict, answer["explains"]
    if verdict == "worker":
        assert (answer["workers"][0]["stage"], answer["workers"][0]["dp_rank"]) == (1, 2)
        assert answer["workers"][0]["explains"] > 0.9
    if verdict == "stages":
        assert "stage 2, the last" in answer["text"]


@pytest.mark.slow
@needs_real_traces
@pytest.mark.parametrize(
    ("name", "replayed_s", "ideal_s", "verdict"),
    [("AR", 46.336, 23.485, "worker"), ("ST", 2.1727, 1.8433, "stages"), ("SE", None, None, "sequences")],
)
def test_published_jobs(name: str, replayed_s: float | None, ideal_s: float | None, verdict: str) -> None:
    """Three production jobs have the published ideal, within 1 %, and the published cause."""
    answer = dptrace.stage_whatif(REAL / "straggler_analysis" / f"timeline-{name}.json.gz")

    assert answer["verdict"] == verdict
    assert answer["replayed_step_ns"] == pytest.approx(answer["recorded_step_ns"], rel=0.02)
    if replayed_s is not None and ideal_s is not None:
        assert answer["replayed_step_ns"] == pytest.approx(replayed_s * 1e9, rel=0.01)
        assert answer["ideal_step_ns"] == pytest.approx(ideal_s * 1e9, rel=0.01)
    if name == "AR":
        assert (answer["workers"][0]["stage"], answer["workers"][0]["dp_rank"]) == (0, 0)
    if name == "ST":
        assert answer["stages"][3]["explains"] == pytest.approx(1.219, abs=0.05)


def _run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(cli, [*arguments])
    return result.exit_code, result.output


@pytest.mark.heavy
def test_the_command_prints_the_answer(tmp_path: Path) -> None:
    """Text has the verdict, JSON what Python returns; options on runs, and pages, are refused."""
    path = write_stages(tmp_path / "planted.json.gz", slow_worker, 3, 4)

    code, text = _run("whatif", str(path))
    assert code == 0
    assert "stage 1 of data-parallel rank 2" in text
    assert json.loads(_run("whatif", str(path), "--json")[1]) == dptrace.stage_whatif(path)
    for options in (["--compute", "2x"], ["--no-cache"], ["--csv"], ["-o", str(tmp_path / "page.html")]):
        assert _run("whatif", str(path), *options)[0] == 2


def test_a_verb_that_reads_traces_points_to_whatif(tmp_path: Path) -> None:
    """Analyze refuses such a file and names the verb that reads it."""
    path = write_stages(tmp_path / "planted.json.gz", even, 2, 1)

    code, text = _run("analyze", str(path))

    assert code == 1
    assert "dptrace whatif" in text


def _without(events: list[dict[str, Any]], **keys: Any) -> list[dict[str, Any]]:
    return [event for event in events if any(event.get(key) != value for key, value in keys.items())]


def _with_first(events: list[dict[str, Any]], **changes: Any) -> list[dict[str, Any]]:
    first = next(event for event in events if event["name"] == "forward-compute")
    return [{**event, **changes} if event is first else event for event in events]


def test_what_cannot_be_replayed_is_refused(tmp_path: Path) -> None:
    """Operations that are unknown, twice, alone or without a place are named."""
    for change, told in (
        (lambda events: _with_first(events, name="magic-recv"), "magic-recv"),
        (lambda events: _with_first(events, tid=99), "tid 99"),
        (lambda events: _with_first(events, args={"step": 0}), "seq_id"),
        (lambda events: _with_first(events, args={"step": 0, "seq_id": 0, "model_chunk": 1}), "model chunks"),
        (lambda events: [*events, *(event for event in events if event["name"] == "optimizer")], "twice"),
        (lambda events: _without(events, name="forward-recv"), "only one end"),
        (lambda events: _without(events, name="forward-send", pid=0), "no step"),
        (lambda events: [event for event in events if event["ph"] == "M" or "send" not in event["name"]], "one end"),
    ):
        path = tmp_path / "timeline.json"
        path.write_text(json.dumps(change(stage_events(even, 2, 2, 4, 2))))
        with pytest.raises(dptrace.TraceError, match=told):
            dptrace.stage_whatif(path)


def test_damaged_and_other_files_are_refused(tmp_path: Path) -> None:
    """A file that is cut, in gzip or in JSON, is not read in part; an empty one and another program's are refused."""
    path = write_stages(tmp_path / "whole.json.gz", even, 2, 2)
    whole = path.read_bytes()
    cut = {
        "cut.json.gz": whole[: len(whole) // 2],
        "cut.json": gzip.decompress(whole)[:20_000],
        "empty.json": b"",
        "other.json": b'[{"name": "step"}]',
    }
    for name, content in cut.items():
        (tmp_path / name).write_bytes(content)

        assert _run("whatif", str(tmp_path / name))[0] == 1, name
        with pytest.raises(dptrace.TraceError, match=name):
            dptrace.stage_whatif(tmp_path / name)


def test_a_step_that_lacks_operations_is_left_out(tmp_path: Path) -> None:
    """The other steps are answered, and a note tells it."""
    events = stage_events(even, 2, 2, 4, 3)
    events.remove(next(event for event in events if event["name"] == "backward-compute"))
    path = tmp_path / "timeline.json"
    path.write_text(json.dumps(events))

    answer = dptrace.stage_whatif(path)

    assert answer["steps"] == 2
    assert "1 of 3 steps" in answer["notes"][0]
