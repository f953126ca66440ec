"""A measured step on other numbers of ranks, against seed 1's 28 runs on A100s."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrace.model.planning.recorded import MeasuredStep, measured_scaling, step_bounds
from tests.support.paths import ROOT

REFERENCE = ROOT.parent / "shared" / "reference" / "a100_pcie_28_runs.csv"


def test_the_workshops_gaps() -> None:
    """GPU workshop, chart 2: overlap saves min(compute, all-reduce): 3, 12, 35 and 50 ms for its four models."""
    pairs = ((3, 31), (12, 37), (35, 74), (50, 94))

    assert [3, 12, 35, 50] == [step_bounds(compute, reduce).saved_s for compute, reduce in pairs]


def test_the_cost_model_of_the_data_parallel_page() -> None:
    """500 ms of communication and 200 ms of computation: 500 ms at best, 700 ms without overlap."""
    bounds = step_bounds(0.2, 0.5)

    assert pytest.approx(0.7) == bounds.serial_s
    assert 0.5 == bounds.overlapped_s


def workshop_runs() -> dict[tuple[str, str, int], tuple[float, float]]:
    with Path(REFERENCE).open(encoding="utf-8") as file:
        return {
            (row["model"], row["mode"], int(row["gpus"])): (float(row["avg_epoch_s"]), float(row["comm_s"] or 0))
            for row in csv.DictReader(file)
        }


@pytest.mark.skipif(not REFERENCE.exists(), reason="needs ../shared/reference")
def test_the_workshops_runs_lie_between_the_bounds() -> None:
    """From the naive run of the same GPUs: all 16 interleaved and DDP runs, up to 4 % of timing noise.

    The middle of the bounds is off by 6.8 % on average; of the eight DDP runs by at most 5.5 %.
    """
    runs, middles = workshop_runs(), []
    for (model, mode, gpus), (epoch, _) in runs.items():
        if mode not in ("interleaved", "ddp"):
            continue
        naive, communication = runs[model, "naive", gpus]
        bounds = step_bounds(naive - communication, communication)
        assert 0.96 * bounds.overlapped_s <= epoch <= 1.04 * bounds.serial_s, (model, mode, gpus)
        middles.append((mode, abs((bounds.serial_s + bounds.overlapped_s) / 2 / epoch - 1)))

    assert 16 == len(middles)
    assert sum(off for _, off in middles) / 16 < 0.07
    assert max(off for mode, off in middles if mode == "ddp") < 0.056


@given(st.floats(1e-3, 1), st.floats(0, 1), st.integers(2, 64))
def test_the_measured_ranks_give_the_measured_bounds(compute: float, communication: float, ranks: int) -> None:
    """On as many ranks as measured, both batches are the measured one."""
    step = MeasuredStep(
        ranks=ranks, compute_s=compute, communication_s=communication, exposed_s=communication, rest_s=0.0, samples=64
    )
    (row,) = measured_scaling(step, (ranks,))

    assert pytest.approx(compute + communication) == row["weak_serial_s"] == pytest.approx(row["strong_serial_s"])
    assert pytest.approx(max(compute, communication)) == row["weak_overlapped_s"]
    assert row["weak_efficiency"] <= 1 + 1e-9
