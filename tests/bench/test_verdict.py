"""The headline of a benchmark: no verdict that the figures do not support."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dptrace.bench.conclusions import conclusions
from dptrace.bench.table import Row, with_speedup
from dptrace.bench.verdict import significantly_faster, verdict
from tests.support.bench_tables import bench


def rows(epochs: int, spread: float | None, **ddp: float) -> list[Row]:
    measured = [bench(model, "single", 1, 1.0) for model in ddp] + [bench(m, "ddp", 2, s) for m, s in ddp.items()]
    return with_speedup([replace(row, epochs=epochs, spread=spread) for row in measured])


@pytest.mark.parametrize(
    ("measured", "says"),
    [
        (rows(1, 0.0, a=0.6), "use --epochs 5 to get a spread"),
        (rows(1, 0.0, a=2.0), "timed for one epoch"),
        (rows(5, 0.01, a=0.4), "a, DDP on 2 GPUs, 2.50×, is more than that many GPUs can reach"),
        (rows(1, 0.0, a=0.4), "is more than that many GPUs can reach"),
        (rows(5, 0.2, a=0.9), "epochs vary as much as the fastest runs differ"),
        (rows(5, 0.2, a=1.1), "epochs vary"),
        (rows(5, 0.01, a=0.6), "DDP pays off for a: 1.67× on 2 GPUs."),
        (rows(5, 0.01, a=1.5), "no mode pays off: one GPU is fastest for every model"),
        (rows(0, None, a=0.9), "DDP pays off for a: 1.11× on 2 GPUs."),
    ],
)
def test_the_headline_says_only_what_the_figures_can_show(measured: list[Row], says: str) -> None:
    """One epoch, more than the ideal, or a difference within the spread give no verdict; means from a CSV do."""
    said = verdict(measured, "Here")[0]

    assert says in said
    assert ("pays off" not in said) == ("no verdict" in said.lower())


def test_models_that_are_not_distinguished_are_named() -> None:
    """Models without a verdict are listed after those with one."""
    said = verdict(rows(5, 0.05, a=0.98, b=0.6), "Here")

    assert len(said) == 2
    assert "DDP pays off for b: 1.67× on 2 GPUs." in said[0]
    assert "no verdict for a (1.02×)" in said[1]


def test_a_run_without_a_baseline_is_not_judged() -> None:
    """The time on one GPU is unknown."""
    assert significantly_faster(bench("a", "ddp", 2, 1.0), []) is None


def test_processes_on_cpu_are_called_so() -> None:
    """They share the cores: no sentence mentions GPUs or what splitting an epoch saves."""
    measured = [*rows(5, 0.01, a=1.5), replace(bench("a", "naive", 2, 1.6), comm_s=0.1, epochs=5)]
    text = " ".join(s for chart in conclusions(measured, on_cpu=True) for s in (chart.title, *chart.sentences))

    assert "no mode pays off: one process is fastest" in text
    assert "GPU" not in text
    assert "can save" not in text
    assert "share this machine's cores" in text
