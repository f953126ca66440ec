"""Steps by the ranges that a user names, in traces of any format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import dptrace
from dptrace.commands.shared.main import cli
from dptrace.core.patterns import Patterns
from dptrace.readers.formats import read_trace
from dptrace.readers.source import Source
from dptrace.timeline.host_calls import OPERATOR_CALLS
from dptrace.timeline.step_marks import with_steps
from tests.support.kineto_files import KinetoFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Four iterations in two steps of the profiler; each has an operator and its kernel."""
    file = KinetoFile()
    for i in range(4):
        at = 100.0 * i
        file.label(f"iteration-{i + 3}", at, at + 90).label("half", at, at + 40).label("half", at + 45, at + 80)
        file.op("aten::mm", at + 5, at + 20).kernel("gemm", at + 30, at + 60, at + 10)
    file.label("ProfilerStep#8", 0, 199).label("ProfilerStep#9", 200, 399)
    return file.write(tmp_path / "r0.json")


def test_a_named_range_takes_the_place_of_the_profilers_steps(path: Path) -> None:
    """The steps have the numbers of the ranges, and the same work is read."""
    own, named = dptrace.open(path, cache=False), dptrace.open(path, step_range="iteration", cache=False)
    steps = named.steps()

    assert own.steps()["step"].tolist() == ["ProfilerStep#8", "ProfilerStep#9"]
    assert steps["step"].tolist() == [f"ProfilerStep#{number}" for number in range(3, 7)]
    assert steps["forward_ns"].tolist() == [30_000] * 4
    assert not named.notes


def test_ranges_without_numbers_of_their_own_are_counted(path: Path) -> None:
    """From 0; and the cache keeps both readings apart."""
    assert len(dptrace.open(path, step_range="half").steps()) == 8
    assert len(dptrace.open(path).steps()) == 2


def test_all_columns_move_with_the_marks(path: Path) -> None:
    """Each event keeps its inputs, details and collective: host calls and operators are the same but for the marks."""
    source = Source(str(path))
    before, after = (OPERATOR_CALLS.read(source, Patterns(step_range=name)) for name in ("", "iteration"))

    def operators(found: object) -> list[tuple[str, int, int]]:
        calls, inputs = found.calls, found.inputs  # type: ignore[attr-defined]
        rows = zip(calls.name.tolist(), calls.start_ns.tolist(), inputs.tolist(), strict=True)
        return [(calls.names[name], start, place) for name, start, place in rows if place >= 0]

    trace = with_steps(read_trace(source, detailed=True), "iteration")
    assert operators(before) == operators(after)
    assert (trace.start_ns[1:] >= trace.start_ns[:-1]).all()
    assert len(trace.detail) == len(trace)
    assert trace.detail.max() < len(trace.details)


@pytest.mark.heavy
def test_the_command_line_takes_it(path: Path) -> None:
    """A name that fits no range is a note with the names that there are."""
    answers = [
        CliRunner().invoke(cli, ["analyze", str(path), "--json", "-q", "--step-range", name])
        for name in ("iteration", "epoch")
    ]

    assert [answer.exit_code for answer in answers] == [0, 0]
    assert [len(json.loads(answer.stdout)["ranks"][0]["steps"]) for answer in answers] == [4, 2]
    assert "--step-range 'epoch' fits no range" in " ".join(json.loads(answers[1].stdout)["notes"])
