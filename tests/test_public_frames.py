"""The columns of the public frames are those that their methods document."""

from __future__ import annotations

import inspect
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import dptrace
from dptrace import Run
from dptrace.comparison.compare import Comparison
from tests.analysis.cross_rank.test_pipeline_bubble import gpipe, run_of
from tests.support.compute_files import ComputeFile
from tests.support.memory_files import memory_run
from tests.support.paths import ROOT, TRACES

RUN_FRAMES = (
    *("steps", "totals", "idle_causes", "collectives", "kernels", "pipeline", "pipeline_actions"),
    *("matched_collectives", "clock_offsets", "stragglers", "findings", "utilization"),
    *("kernel_summary", "launches"),
    *("memory", "memory_usage", "memory_blocks", "memory_over_time", "allocator_calls"),
)
FRAMES_OF_GPUS = ("compute_findings",)
COMPARISON_FRAMES = "figures", "ranks", "collectives", "kernels"
KINDS = {"int": "i", "Int64": "i", "float": "f", "bool": "b", "str": "OTU", "string": "O", "None": "fO"}
KINDS |= dict.fromkeys(("tuple", "dict", "list"), "O")
"""The kinds of NumPy dtypes that each documented type may have; a missing number makes a column float."""


def documented(method: Callable[..., Any]) -> dict[str, str]:
    """Read the section Columns of a comparison's docstring: what is in the parentheses after each column's name."""
    text = inspect.cleandoc(method.__doc__ or "")
    section = re.search(r"^Columns:\n((?:    .*\n?)+)", text, re.M)
    assert section, f"{method.__qualname__} documents no columns"
    columns: dict[str, str] = {}
    for entry in re.findall(r"^    (\S.*(?:\n     +.*)*)", section[1], re.M):
        names, known = re.fullmatch(r"([\w, …]+?)(?: \(([^)]*)\))?: .*", entry, re.S).groups()  # type: ignore[union-attr]
        if reference := re.fullmatch(r"(\w+) … (\w+)", names):
            other = re.search(r"as in :meth:`(\w+)`", entry)
            assert other, entry
            same = documented(getattr(Comparison, other[1]))
            order = list(same)
            listed = order[order.index(reference[1]) : order.index(reference[2]) + 1]
            columns |= {name: same[name] for name in listed}
        else:
            columns |= dict.fromkeys(names.split(", "), known)
    return columns


def check(method: Callable[..., Any], frames: list[pd.DataFrame]) -> None:
    """Hold the frames that a method returns against its docstring: columns in their order, dtypes, units."""
    columns = documented(method)
    assert any(len(frame) for frame in frames), f"{method.__qualname__}: no frame has rows"
    for frame in frames:
        assert list(frame) == list(columns), method.__qualname__
        for name, dtype in zip(columns, frame.dtypes, strict=True):
            allowed = {kind for word in re.findall(r"\w+", columns[name].split(",")[0]) for kind in KINDS.get(word, "")}
            assert dtype.kind in allowed, f"{method.__qualname__}: {name} is {dtype}, documented as {columns[name]}"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Run]:
    """Open runs with and without communication and with memory events, and make one of a pipeline."""
    recorded = [dptrace.open(TRACES / name) for name in ("interleaved_cpu_2ranks", "naive_cpu_2ranks", "single_cpu")]
    remembered = dptrace.open(memory_run(tmp_path_factory.mktemp("memory")))
    return [*recorded, remembered, run_of(gpipe(2, 4), 10, 20)]


@pytest.mark.heavy
def test_a_runs_frames_are_documented(runs: list[Run], tmp_path: Path) -> None:
    """Each column of each table of a run, with its dtype and unit; also of a table without rows."""
    for name in RUN_FRAMES:
        check(getattr(Run, name), [getattr(run, name)() for run in runs])
    # Those that have no rows on a CPU.
    file = ComputeFile().step().copy("Memcpy HtoD (Pageable -> Device)", 200).kernel("aten::mm", "gemm", 50)
    file.file.write(tmp_path / "rank0.json")
    for name in FRAMES_OF_GPUS:
        check(getattr(Run, name), [getattr(dptrace.open(tmp_path), name)()])


@pytest.mark.heavy
def test_a_comparisons_frames_are_documented(runs: list[Run]) -> None:
    """Each column of each table of a comparison, with its dtype and unit."""
    interleaved, naive, single, *_ = runs
    compared = [dptrace.compare(naive, interleaved), dptrace.compare(single, single)]
    for name in COMPARISON_FRAMES:
        check(getattr(Comparison, name), [getattr(comparison, name)() for comparison in compared])


def test_the_page_on_json_has_the_columns_as_declared() -> None:
    """If it has not, run python docs/make_columns.py."""
    script = runpy.run_path(str(ROOT / "docs" / "make_columns.py"))
    page = script["PAGE"].read_text(encoding="utf-8")

    assert script["filled"](page) == page
    assert set(script["TABLES"]) == set(re.findall("<!-- columns: (.*) -->", page))


def test_no_frame_is_left_out() -> None:
    """Every public method that returns a frame is among those above."""
    for owner, names in ((Run, (*RUN_FRAMES, *FRAMES_OF_GPUS)), (Comparison, COMPARISON_FRAMES)):
        frames = {
            name
            for name, method in inspect.getmembers(owner, inspect.isfunction)
            if method.__annotations__.get("return") == "pd.DataFrame"
        }
        assert frames == set(names)
