"""What a benchmark's headline says: only as much as the figures can tell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dptrace.bench.conclusions import conclusions
from dptrace.bench.table import Row, with_speedup
from dptrace.bench.verdict import significantly_faster, verdict
from tests.support.bench_tables import bench


def rows(epochs: int, spread: float | None, **ddp: float) -> list[Row]:
    made = [bench(model, "single", 1, 1.0) for model in ddp] + [bench(m, "ddp", 2, s) for m, s in ddp.items()]
    return with_speedup([replace(row, epochs=epochs, spread=spread) for row in made])


@pytest.mark.parametrize(
    ("measured", "says"),
    [
        (rows(1, 0.0, a=0.6), "One epoch each: no verdict; --epochs 5 gives a spread."),
        (rows(1, 0.0, a=2.0), "One epoch each: no verdict"),
        (rows(5, 0.01, a=0.4), "Here no verdict: a, DDP on 2 GPUs, 2.50×, is more than so many can bring"),
        (rows(1, 0.0, a=0.4), "is more than so many can bring"),
        (rows(5, 0.2, a=0.9), "Here no verdict: the epochs scatter as much as the fastest runs differ"),
        (rows(5, 0.2, a=1.1), "Here no verdict: the epochs scatter"),
        (rows(5, 0.01, a=0.6), "Here DDP pays off for a: 1.67× on 2 GPUs."),
        (rows(5, 0.01, a=1.5), "Here nothing pays off: one GPU is the fastest for every model"),
        (rows(0, None, a=0.9), "Here DDP pays off for a: 1.11× on 2 GPUs."),
    ],
)
def test_the_headline_says_only_what_the_figures_can_tell(measured: list[Row], says: str) -> None:
    """One epoch, more than the ideal or a difference within the scatter give no verdict; others' means do."""
    said = verdict(measured, "Here")[0]

    assert says in said
    assert ("pays off" not in said) == ("no verdict" in said)


def test_models_that_are_not_told_apart_are_named() -> None:
    """Beside those of which there is a verdict."""
    said = verdict(rows(5, 0.05, a=0.98, b=0.6), "Here")

    assert said == (
        "Here DDP pays off for b: 1.67× on 2 GPUs.",
        "DDP: no verdict for a (1.02×), whose epochs scatter as much as they differ from one GPU's.",
    )


def test_a_run_without_a_baseline_is_not_judged() -> None:
    """Nothing is known of one GPU."""
    assert significantly_faster(bench("a", "ddp", 2, 1.0), []) is None


def test_processes_on_cpu_are_called_so() -> None:
    """They share the cores: of no chart a sentence speaks of GPUs, and what sharing out saves is not told."""
    measured = [*rows(5, 0.01, a=1.5), replace(bench("a", "naive", 2, 1.6), comm_s=0.1, epochs=5)]
    text = " ".join(said for chart in conclusions(measured, on_cpu=True) for said in (chart.title, *chart.sentences))

    assert "nothing pays off: one process is the fastest" in text
    assert "GPU" not in text
    assert "can save" not in text
    assert "share this machine's cores" in text
