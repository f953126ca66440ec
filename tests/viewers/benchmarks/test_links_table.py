"""Measured links as text."""

from __future__ import annotations

from typing import Any

import pytest

from dptrace.model.link_report import link_report
from dptrace.viewers.base.table import fitting_table
from dptrace.viewers.benchmarks.links_table import (
    algorithm_tables,
    facts,
    fits_table,
    nearest_link_sentence,
    topology,
)
from tests.support.links_samples import measured, with_algorithms
from tests.support.terminal_text import captured


def only_row(content: dict[str, Any]) -> dict[str, str]:
    cells = fits_table(content)
    (row,) = cells.rows
    return dict(zip(cells.columns, row, strict=True))


def test_a_row_shows_fit_bandwidth_and_one_link() -> None:
    """The row of four ranks over links of 30 µs and 4 GB/s."""
    row = only_row(link_report(measured(kinds=("all_reduce",))))

    assert "all-reduce" == row[""]
    assert row["α µs\n(95 %)"].startswith("180 (")  # six hops
    assert row["β ps/byte\n(95 %)"].startswith("375 (")  # 1.5 times the bytes
    assert ("30", "4", "64 MiB") == (row["per link\nα µs"], row["per link\nGB/s"], row["up to"])


def test_what_has_no_fit_has_dashes() -> None:
    """Its bandwidth is still shown."""
    raw = measured(kinds=("broadcast",))
    row = only_row(link_report(raw | {"samples": raw["samples"][:1]}))

    assert "–" == row["α µs\n(95 %)"] == row["n* =\nα/β"] == row["R²\nabove n*"] == row["per link\nGB/s"]
    assert "–" != row["busbw\nGB/s"]
    assert "" == nearest_link_sentence(link_report(raw | {"samples": raw["samples"][:1]}))


@pytest.mark.heavy
def test_gloo_and_nccl_are_distinguished() -> None:
    """A measurement on CPUs must not be taken for one of GPUs."""
    assert any("no GPU was used" in fact for fact in facts(link_report(measured())))
    assert "NCCL 2.28.3" in facts(link_report(measured(backend="nccl")))


@pytest.mark.heavy
def test_the_topology_says_what_is_not_reported() -> None:
    """NUMA nodes and GPU links that are unknown are named."""
    content = link_report(measured())
    (line,) = topology(content)
    assert line.startswith("box: 8 cores; NUMA nodes with their cores 0: 0-7; GPU links unknown")

    content["machines"][0] |= {"numa": [], "gpu_links": {"0-1": "NV18"}}
    content["gpus"] = ["H100", "H100"]
    line, gpus = topology(content)
    assert "NUMA nodes unknown" in line
    assert "GPU links 0-1 NV18" in line
    assert "GPUs by rank: H100, H100." == gpus


@pytest.mark.heavy
def test_the_table_fits_a_wide_terminal() -> None:
    """Six rows, each on one line of 132 characters."""
    text = captured(lambda console: console.print(fitting_table(fits_table(link_report(measured())))), 132)

    assert 6 == sum(line.startswith(("all-", "reduce-", "broadcast", "point-")) for line in text.splitlines())
    assert "…" not in text


# Timed algorithms as tables.


@pytest.mark.heavy
def test_measured_times_stand_beside_predictions() -> None:
    """A row for each algorithm, then a column for each; the fastest of a size is marked. Without a line, no column
    shows a difference, and the note says why; without algorithms, as in older files, there is no table."""
    both = link_report(with_algorithms(measured(kinds=("all_reduce", "send_recv"))))
    (_, volumes), (_, times) = algorithm_tables(both)
    by_name = {row[0]: row for row in volumes.rows}
    (_, unknown), (_, bare) = algorithm_tables(link_report(with_algorithms(measured(kinds=("all_reduce",)))))

    assert ("1.5 n", "6 n") == by_name["ring"][2:4]
    assert ("3 n", "6 n") == by_name["naive"][2:4]
    assert "ring overtakes tree" in volumes.note
    assert ("size", "library", "ring", "tree", "halving-doubling", "hierarchical", "naive") == times.columns
    assert all(1 == sum(cell.endswith("*") for cell in row) for row in times.rows)
    assert all("%" in cell for row in times.rows for cell in row[2:])
    assert {"–"} == {row[5] for row in unknown.rows}
    assert "point-to-point" in unknown.note
    assert not any("%" in cell for row in bare.rows for cell in row)
    assert [] == list(algorithm_tables(link_report(measured())))
