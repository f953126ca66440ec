"""The conclusions of a benchmark, on small hand-written tables and on the workshop's table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dptrace.bench.conclusions import CHARTS, ChartText, conclusions, significantly_faster, verdict, warnings_about
from dptrace.bench.table import Row, models_by_size, savings, shares, superlinear_row, usable, with_speedup
from tests.support.bench_tables import WORKSHOP, bench


def said(rows: list[Row], name: str, local_loss: bool = False) -> ChartText:
    return next(chart for chart in conclusions(rows, local_loss=local_loss) if chart.name == name)


def test_the_workshops_table_shows_the_workshops_story() -> None:
    """Small is slower than one GPU, xlarge reaches 2.4 times on four, communication is 47 % of small's epoch."""
    text = " ".join(sentence for chart in conclusions(WORKSHOP) for sentence in chart.sentences)

    assert "DDP pays off from 8.4 M parameters up" in text
    assert "small: one GPU is fastest; the best of the others is DDP on 2 GPUs, 0.83×." in text
    assert (
        "xlarge, interleaved on 4 GPUs: 2.40×, 60 % of the ideal 4× and 84 % of Amdahl's ceiling 2.84× (f = 0.86)."
        in text
    )
    assert "s = 47 % of an epoch of small on 2 GPUs, and 17 % of xlarge on 2 GPUs." in text
    assert "Interleaved saves at most 16 % (medium on 2 GPUs) and loses up to 3 % (small on 2 GPUs)." in text
    assert "from 50.1 ms to 74.4 ms (+49 %)" in text
    assert "xlarge, interleaved on 4 GPUs: 131,844 samples/s, against 55,016 on one GPU." in text
    assert "4 GPUs can save 27.1 ms of one GPU's epoch by splitting it; communication adds 30.7 ms, more than" in text
    assert warnings_about(WORKSHOP) == []


@pytest.mark.parametrize(
    ("ddp", "says"),
    [
        ({"a": 1.5, "b": 1.5}, "no mode pays off: one GPU is fastest for every model (a, DDP on 2 GPUs: 0.67×)"),
        ({"a": 0.6, "b": 0.8}, "DDP pays off for every model measured, from 1.0 M parameters up."),
        (
            {"a": 2.0, "b": 0.5},
            "DDP pays off from 9.0 M parameters up: b reaches 2.00× on 2 GPUs, a (1.0 M) only 0.50×",
        ),
        ({"a": 0.5, "b": 2.0}, "DDP pays off for a, but not for b."),
        ({"b": 0.5}, "DDP pays off for b: 2.00× on 2 GPUs."),
    ],
)
def test_from_which_size_on_it_pays(ddp: dict[str, float], says: str) -> None:
    """No model pays off, or all, the larger, the smaller, or the only one."""
    rows = [bench(model, "single", 1, 1.0) for model in ddp] + [bench(m, "ddp", 2, s) for m, s in ddp.items()]

    assert says in said(with_speedup(rows), "epoch_time").sentences[0]


def test_what_is_missing_is_said_in_the_charts_place() -> None:
    """No baseline, no naive runs, no losses, no throughput, or only failed runs."""
    parallel = [replace(bench("a", "ddp", 2, 1.0), samples_per_s=None)]
    failed = [Row("a", "ddp", 2, failed="broke")]

    assert "one GPU (mode single)" in said(parallel, "speedup").missing
    assert "no model ran on more than one GPU" in said(with_speedup([bench("a", "single", 1, 1.0)]), "speedup").missing
    assert "no naive run" in said(parallel, "communication").missing
    assert "was not measured" in said([bench("a", "naive", 2, 1.0)], "communication").missing
    assert "no naive run" in said(parallel, "saving").missing
    assert "no other mode" in said([bench("a", "naive", 2, 1.0)], "saving").missing
    assert "no losses" in said(parallel, "loss").missing
    assert "samples per second" in said(parallel, "throughput").missing
    assert [] == [chart for chart in conclusions(failed) if not chart.missing]
    assert list(CHARTS) == [chart.name for chart in conclusions([])]


def test_equal_losses_prove_equal_mathematics() -> None:
    """Sums in another order differ in the last digits; another training differs by more, at a named step."""
    one, two = bench("a", "single", 1, 1.0), bench("a", "ddp", 2, 1.0)
    close = [replace(one, losses=(2.3, 2.2, None)), replace(two, losses=(2.3000002, 2.2, 2.1))]
    apart = [replace(one, losses=(2.3, 2.2)), replace(two, losses=(2.3, 2.0))]

    assert "all 2 curves coincide (they differ by at most 2e-07)" in said(close, "loss").sentences[0]
    assert "the curves differ by 0.2 at step 1" in said(apart, "loss").sentences[0]
    assert (
        "no step has a loss in two runs"
        in said([replace(one, losses=(None,)), replace(two, losses=(1.0,))], "loss").sentences[0]
    )
    assert "no other curve" in said(close[:1], "loss").sentences[0]


def test_local_losses_are_reported_as_an_artefact() -> None:
    """Each rank sees its own shard."""
    rows = [
        replace(bench("a", m, g, 1.0), local_losses=losses)
        for m, g, losses in (("single", 1, (2.3,)), ("ddp", 2, (2.4,)))
    ]
    sentences = said(rows, "loss", local_loss=True).sentences

    assert "2 runs differ by up to 0.1" in sentences[0]
    assert "its shard of each batch" in sentences[1]


def test_more_than_the_ideal_is_doubted() -> None:
    """Two GPUs cannot be three times as fast; the run on one GPU was slowed down."""
    rows = with_speedup([bench("a", "single", 1, 3.0), bench("a", "ddp", 2, 1.0)])
    row = superlinear_row(rows)

    assert row is rows[1]
    assert warnings_about(rows)[0].startswith("3.00× with 2 GPUs (a, DDP) is more than")
    assert "ceiling" not in said(rows, "speedup").sentences[0]


def test_savings_have_a_sign() -> None:
    """Percent of naive's epoch: above 0 where the epoch is shorter."""
    rows = [
        bench("a", "naive", 2, 2.0),
        bench("a", "ddp", 2, 1.5),
        bench("a", "interleaved", 2, 2.5),
        bench("a", "ddp", 4, 1.0),
    ]

    assert [("ddp", 25.0), ("interleaved", -25.0)] == [(one.row.mode, one.percent) for one in savings(rows)]


def test_communication_is_never_more_than_the_epoch() -> None:
    """Communication and epoch come from different steps."""
    (share,) = shares([replace(bench("a", "naive", 4, 1.0), comm_s=1.5)])

    assert (0.0, 1.0, 1.0) == (share.compute_s, share.comm_s, share.fraction)
    assert pytest.approx(0.25) == share.efficiency


def test_rows_that_are_there_twice_count_once() -> None:
    """The first row counts, failed rows do not; models are ordered by size."""
    rows = [
        bench("b", "ddp", 2, 1.0),
        bench("b", "ddp", 2, 9.0),
        Row("a", "ddp", 2, failed="x"),
        bench("a", "ddp", 2, 2.0),
    ]

    assert [1.0, 2.0] == [row.epoch_s for row in usable(rows)]
    assert ["a", "b"] == models_by_size(rows)


# The headline of a benchmark: no verdict that the figures do not support.


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
