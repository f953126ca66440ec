"""run.json as people and other tools write it."""

from __future__ import annotations

import copy
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import dptrace
from dptrace.readers.sources.run_file import read_run_file
from dptrace.readers.sources.source import Source
from dptrace.viewers.terminal.summary import print_run
from tests.support.kineto_files import KinetoFile, training_step

_RANK = {
    "node": 0,
    "host": "h",
    "recorded_steps": 3,
    "unprofiled_ns": [5, 6],
    "memory": {"parameters_bytes": 5},
    "flops": {"model": 1e9, "hardware": 2e9, "dtype": "bf16"},
    "experts": {"layers": [0], "expert_load": [[1, 2]]},
}
RUN: dict[str, Any] = {
    "schema": 1,
    "mode": "ddp",
    "parameters": 100,
    "profiler_overhead": 0.2,
    "losses": [1.0, None],
    "options": {"batch_size": 8, "tokens_per_sample": 4, "dtype": "float32"},
    "versions": {"torch": "2.9"},
    "ddp": {"bucket_cap_bytes": 100, "bucket_sizes": "1, 2"},
    "links": {"busbw_gbps": 450.0},
    "notes": ["a note"],
    "ranks": [{"rank": rank, "coordinates": {"dp": rank}, **_RANK} for rank in (0, 1)],
}


def read(folder: Path, text: str) -> tuple[dict[str, Any], list[str]]:
    path = folder / "run.json"
    path.write_text(text, encoding="utf-8")
    return read_run_file(Source.of(path))


@pytest.mark.parametrize("text", ["[1]", '"text"', "null", "5", "true", "{", "", '{"a": 1} x', "[" * 100_000])
def test_what_holds_no_run_is_reported(text: str, tmp_path: Path) -> None:
    """The traces are read without it, and a note names the file."""
    content, (note,) = read(tmp_path, text)

    assert ({}, True) == (content, note.startswith("run.json"))


@pytest.mark.parametrize("text", [json.dumps(RUN), json.dumps(RUN, indent=2), "\ufeff" + json.dumps(RUN)])
def test_any_spelling_of_json_is_read(text: str, tmp_path: Path) -> None:
    """Also with the byte order mark that editors on Windows write."""
    assert (RUN, []) == read(tmp_path, text)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "1" * 400])
def test_numbers_that_are_not_finite_are_null(number: str, tmp_path: Path) -> None:
    """Python writes them; they cost only themselves, and a note shows them."""
    content, (note,) = read(tmp_path, f'{{"mode": "ddp", "options": {{"clip": {number}}}}}')

    assert {"mode": "ddp", "options": {"clip": None}} == content
    assert number[:40] in note


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("ranks", 8),
        ("ranks", {"0": {}}),
        ("ranks.0", 5),
        ("ranks.0.rank", [0]),
        ("ranks.1.rank", True),
        ("ranks.0.flops.model", "1e9"),
        ("mode", ["ddp"]),
        ("notes", "a"),
        ("notes.0", {}),
        ("links", 450),
        ("links.busbw_gbps", "450"),
        ("options", []),
        ("losses", 0.5),
    ],
)
def test_a_value_of_a_wrong_type_costs_only_itself(place: str, value: object, tmp_path: Path) -> None:
    """All else is there, and a note names the value."""
    path = tuple(int(key) if key.isdigit() else key for key in place.split("."))
    expected, given = copy.deepcopy(RUN), copy.deepcopy(RUN)
    _parent(given, path)[path[-1]] = value
    del _parent(expected, path)[path[-1]]

    content, (note,) = read(tmp_path, json.dumps(given))

    assert expected == content
    assert re.sub(r"\.(\d)", r"[\1]", place) in note


def _parent(value: Any, place: tuple[Any, ...]) -> Any:
    for key in place[:-1]:
        value = value[key]
    return value


def _places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if place:
        yield place
    if isinstance(value, (dict, list)) and value:
        for key in value if isinstance(value, dict) else [0]:
            yield from _places(value[key], (*place, key))


@pytest.mark.heavy
@pytest.mark.parametrize("value", [8, "x", True, [[8]], {"rank": [8]}], ids=str)
def test_no_value_breaks_the_figures(value: object, tmp_path: Path) -> None:
    """Whatever a key holds, a run has its figures and findings."""
    for rank in (0, 1):
        file = KinetoFile(rank=rank, world_size=2)
        for k in range(4):
            training_step(file, k, 100 * k)
        file.write(tmp_path / f"rank{rank}.json")
    run_file = tmp_path / "run.json"
    for place in _places(RUN):
        given = copy.deepcopy(RUN)
        _parent(given, place)[place[-1]] = value
        run_file.write_text(json.dumps(given))

        run, text = dptrace.open(tmp_path, jobs=1), io.StringIO()
        print_run(run, Console(file=text))

        assert 2 == len(run.to_dict()["ranks"])
        assert "forward" in text.getvalue()
