"""The table of a sweep."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from dptrace.bench.sweep_points import BUCKET_CAP
from dptrace.viewers.benchmarks import sweep_table
from tests.support.sweeps import make_sweep, result

STEPS = {"1": result(0.2, accuracy=0.5), "4": result(0.1), "8": {"failed": "broke | <b>[x]"}}


@pytest.fixture
def content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    return make_sweep(tmp_path, monkeypatch, {BUCKET_CAP: ("1", "4", "8")}, STEPS).result.content


def test_the_cells_are_the_points(content: dict[str, Any]) -> None:
    """Times in ms, the best marked, a failed run without figures, accuracy where there is some."""
    told = sweep_table.cells(content)
    rows = [dict(zip(told.columns, row, strict=True)) for row in told.rows]

    assert [row[""] for row in rows] == ["1 MiB", "4 MiB ◀ best", "8 MiB"]
    assert [row["step p50 ms"] for row in rows] == ["200.00", "100.00", "failed"]
    assert [row["accuracy"] for row in rows] == ["50.0", "–", "–"]
    assert rows[1]["exposed ms"] == f"{1e3 * content['points'][1]['exposed_s']:.2f}"


def test_columns_of_nothing_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No accuracy without validation data, no prediction where no caps were swept."""
    steps = {"64": result(0.1, batch_size=64), "128": result(0.1)}
    told = sweep_table.cells(make_sweep(tmp_path, monkeypatch, {"batch-size": ("64", "128")}, steps).result.content)

    assert not {"accuracy", "by the fit ms"} & set(told.columns)


def test_the_terminal_and_markdown_show_the_same(content: dict[str, Any]) -> None:
    """The message of a failed run is not markup in either."""
    out = io.StringIO()
    sweep_table.print_table(content, Console(width=160, file=out))
    text = sweep_table.markdown(content)

    assert "4 MiB ◀ best" in out.getvalue()
    assert "Sweep of bucket cap: resnet18, ddp, 2 ranks" in out.getvalue()
    assert "| 4 MiB ◀ best | 100.00 |" in text
    assert "broke \\| &lt;b>\\[x]" in text
