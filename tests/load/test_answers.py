"""Findings are kept in the cache beside what is read of files, and computed again after any change."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dptrace
from dptrace.core.table import step_number
from dptrace.load import rank_file
from dptrace.replay import advice
from dptrace.replay.advice import recorded_advice
from dptrace.replay.finding_list import FindingList
from dptrace.replay.findings import compute_findings_of, findings_of, stored_answer
from tests.support.paths import TRACES
from tests.support.planted import Plant, planted_job
from tests.support.real_traces import needs_real_traces, real


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a run's folder; the cache is empty."""
    monkeypatch.setenv("DPTRACE_CACHE", str(tmp_path / "cache"))
    folder = planted_job(tmp_path / "job", [Plant(1, "loader", 5)], ranks=2)
    (folder / "run.json").write_text(json.dumps({"schema": 1, "mode": "ddp"}))
    return folder


def no_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a list of findings that is computed fail."""
    monkeypatch.setattr(FindingList, "found", lambda *_: pytest.fail("was computed again"))
    monkeypatch.setattr(FindingList, "of_others", lambda *_: pytest.fail("was computed again"))


def computed(run: dptrace.Run) -> bool:
    """Return whether the findings of a run were computed, and not read."""
    findings_of(run)
    return "findings_list" in vars(run)


def answers(run: dptrace.Run) -> list[Any]:
    """Return all findings of a run as plain data, and of one of its steps and ranks."""
    step = step_number(run.timelines[0].windows.names[1])
    parts = (run, run.select(steps=step), run.select(ranks="1"))
    found = [findings_of(part) for part in parts]
    if not run.on_cpu:
        found += [compute_findings_of(run), compute_findings_of(run, after=True)]
    return [json.dumps([one.to_dict() for one in listed]) for listed in found]


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["planted", "ddp_h200_2ranks", "naive_cpu_2ranks"])
def test_what_is_read_is_what_was_computed(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the whole run and of parts, about steps and compute: to the last digit, also without a cache."""
    path = folder if name == "planted" else TRACES / name
    first, uncached = answers(dptrace.open(path)), answers(dptrace.open(path, cache=False))
    again = dptrace.open(path)
    listed = findings_of(again)

    no_replay(monkeypatch)
    assert first == uncached == answers(dptrace.open(path))
    assert listed == findings_of(dptrace.open(path))


@pytest.mark.heavy
def test_a_repeated_advice_replays_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its what-ifs are kept as findings are, and say the same as without a cache."""
    first, uncached = recorded_advice(dptrace.open(folder)), recorded_advice(dptrace.open(folder, cache=False))

    no_replay(monkeypatch)
    monkeypatch.setattr(advice, "replay_of_some", lambda *_: pytest.fail("was replayed again"))
    assert first == uncached == recorded_advice(dptrace.open(folder))


@pytest.mark.heavy
@needs_real_traces
def test_what_is_left_after_stored_findings_is_computed_from_them(folder: Path) -> None:
    """The list itself comes from the cache: what it took out of the run is found again for what follows it."""
    path = real("compute/h100_bert_small")
    expected = compute_findings_of(dptrace.open(path, cache=False), after=True)
    findings_of(dptrace.open(path))

    run = dptrace.open(path)
    assert not computed(run)
    assert expected
    assert expected == compute_findings_of(run, after=True)


def _touch(folder: Path) -> None:
    os.utime(next(folder.glob("*rank1*")), ns=(1, 1))


def _describe(folder: Path) -> None:
    (folder / "run.json").write_text(json.dumps({"schema": 1, "mode": "fsdp"}))


def _damage(folder: Path) -> None:
    entry = next((folder.parent / "cache").glob("*.answer"))
    entry.write_bytes(entry.read_bytes()[:-1] + b"?")


def _as_before(folder: Path) -> None:
    pass


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("change", "options", "anew"),
    [
        (_as_before, {}, False),
        (_touch, {}, True),
        (_describe, {}, True),
        (_damage, {}, True),
        (_as_before, {"comm_patterns": ["gemm"]}, True),
        (_as_before, {"align": False}, True),
        (_as_before, {"cache": False}, True),
    ],
)
def test_findings_are_computed_again_after_a_change(
    change: Callable[[Path], None], options: dict[str, Any], anew: bool, folder: Path
) -> None:
    """Of a file, run.json, the entry or an option; then they are kept again."""
    assert computed(dptrace.open(folder))
    change(folder)

    assert anew is computed(dptrace.open(folder, **options))
    assert options.get("cache") is False or not computed(dptrace.open(folder, **options))


@pytest.mark.heavy
def test_other_code_has_other_findings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replay's too, of which the figures of a file do not depend."""
    computed(dptrace.open(folder))
    monkeypatch.setattr(rank_file, "_code_of", lambda room: "newer" if room == "replay" else room)

    assert computed(dptrace.open(folder))


def test_a_run_that_is_not_as_its_files_are_keeps_nothing(folder: Path) -> None:
    """Timelines that were replaced, and files that changed since they were read."""
    run = dptrace.open(folder)
    other = replace(run, timelines=tuple(timeline.take(np.arange(9)) for timeline in run.timelines))
    assert [1] == stored_answer(other, "question", list[int], lambda: [1])
    changed = other.select(steps=1)
    assert [2] == stored_answer(changed, "question", list[int], lambda: [2])
    _touch(folder)
    assert [3] == stored_answer(run, "question", list[int], lambda: [3])

    assert not list((folder.parent / "cache").glob("*.answer"))
    assert rank_file.cache_summary().traces == 2
