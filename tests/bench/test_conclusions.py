"""The conclusions of a benchmark, on small hand-written tables and on the workshop's table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dptrace.bench.conclusions import CHARTS, ChartText, conclusions, faster, warnings_about
from dptrace.bench.table import Row, models_by_size, shares, usable, with_speedup
from tests.support.bench_tables import WORKSHOP, bench


def said(rows: list[Row], name: str, local_loss: bool = False) -> ChartText:
    return next(chart for chart in conclusions(rows, local_loss=local_loss) if chart.name == name)


@pytest.mark.parametrize(
    ("chart", "facts"),
    [
        ("epoch_time", ["DDP pays off from 8.4 M parameters up", "not for small (0.83× on 2 GPUs)"]),
        ("speedup", ["xlarge, interleaved on 4 GPUs: 2.40×, 60 %", "84 % of Amdahl's ceiling 2.84× (f = 0.86)"]),
        ("speedup", ["small, DDP on 2 GPUs: 0.83×", "one GPU is fastest"]),
        ("communication", ["s = 47 % of an epoch of small on 2 GPUs", "s = 17 % of an epoch of xlarge on 2 GPUs"]),
        ("communication", ["from 50.1 ms to 74.4 ms (+49 %)"]),
        ("saving", ["Interleaved saves time over naive: +16 % (medium on 2 GPUs)", "−3 % (small on 2 GPUs) at worst"]),
        ("throughput", ["xlarge, interleaved on 4 GPUs: 131,844 samples/s, against 55,016 on one GPU."]),
        ("throughput", ["4 GPUs can save 27.1 ms", "communication adds 30.7 ms, more than"]),
    ],
)
def test_the_workshops_table_shows_the_workshops_story(chart: str, facts: list[str]) -> None:
    """Small is slower than one GPU, xlarge reaches 2.4 times on four, communication is 47 % of small's epoch."""
    text = " ".join(said(WORKSHOP, chart).sentences)

    assert all(fact in text for fact in facts), text
    assert warnings_about(WORKSHOP) == []


def rows(epochs: int, spread: float | None, **ddp: float) -> list[Row]:
    """Return models that take a second on one GPU, and these seconds with DDP on two."""
    measured = [bench(model, "single", 1, 1.0) for model in ddp] + [bench(m, "ddp", 2, s) for m, s in ddp.items()]
    return with_speedup([replace(row, epochs=epochs, spread=spread) for row in measured])


@pytest.mark.parametrize(
    ("measured", "facts"),
    [
        (rows(1, 0.0, a=0.6), ["no verdict", "--epochs 5", "1.67×"]),
        (rows(5, 0.01, a=0.4), ["no verdict", "a, DDP on 2 GPUs: 2.50×"]),
        (rows(1, 0.0, a=0.4), ["no verdict", "2.50×"]),
        (rows(5, 0.2, a=0.9), ["no verdict", "epochs vary"]),
        (rows(5, 0.2, a=1.1), ["no verdict", "epochs vary"]),
        (rows(5, 0.01, a=1.5), ["no mode pays off", "0.67×"]),
        (rows(0, None, a=0.9), ["DDP pays off", "a (1.11× on 2 GPUs)"]),
        (rows(5, 0.01, a=0.6, b=0.8), ["DDP pays off from 1.0 M parameters up: a (1.67×"]),
        (rows(5, 0.01, a=2.0, b=0.5), ["DDP pays off from 9.0 M parameters up: b (2.00×", "not for a (0.50×"]),
        (rows(5, 0.01, a=0.5, b=2.0), ["DDP pays off for a (2.00×", "not for b (0.50×"]),
        (rows(5, 0.05, a=0.98, b=0.6), ["pays off from 9.0 M parameters up: b (1.67×", "no verdict for a (1.02×"]),
    ],
)
def test_the_headline_says_only_what_the_figures_can_show(measured: list[Row], facts: list[str]) -> None:
    """One epoch, more than the ideal, or a difference within the spread give no verdict; means from a CSV do."""
    sentence = said(measured, "epoch_time").sentences[0]

    assert all(fact in sentence for fact in facts), sentence


@pytest.mark.parametrize(
    ("epochs", "spread", "naive", "verdict", "over_one_gpu", "over_naive"),
    [
        (1, 0.0, 1.0, None, "no verdict", "no verdict"),
        (5, 0.3, 1.0, None, "no verdict", "no verdict"),
        (5, 0.01, 1.1, False, "no mode pays off", "never saves time"),
        (5, 0.01, 2.0, True, "no mode pays off", "saves time"),
    ],
)
def test_all_charts_share_the_verdict(
    epochs: int, spread: float, naive: float, verdict: bool | None, over_one_gpu: str, over_naive: str
) -> None:
    """Where the epochs cannot tell two runs apart, the savings over naive have no verdict either."""
    other = replace(bench("a", "naive", 2, naive), epochs=epochs, spread=spread)
    measured = with_speedup([*rows(epochs, spread, a=1.22), other])

    assert verdict is faster(measured[1], other)
    assert over_one_gpu in said(measured, "epoch_time").sentences[0]
    assert over_naive in said(measured, "saving").sentences[0]
    assert "(a on 2 GPUs)" in said(measured, "saving").sentences[0]


def test_a_loss_of_some_is_no_loss_of_all_where_others_cannot_be_told() -> None:
    """DDP is slower than naive with a, and within the spread with b: "never saves" would be said of both."""
    measured = [
        replace(bench(model, mode, 2, seconds), epochs=5, spread=0.02)
        for model, mode, seconds in (("a", "naive", 1.0), ("a", "ddp", 2.0), ("b", "naive", 1.0), ("b", "ddp", 0.99))
    ]

    assert "DDP does not clearly save time over naive: −100 %" in said(measured, "saving").sentences[0]


@pytest.mark.parametrize(
    ("rows", "chart", "words"),
    [
        ([bench("a", "ddp", 2, 1.0)], "speedup", "one GPU (mode single)"),
        (with_speedup([bench("a", "single", 1, 1.0)]), "speedup", "more than one GPU"),
        ([bench("a", "ddp", 2, 1.0)], "communication", "no naive run"),
        ([bench("a", "naive", 2, 1.0)], "communication", "not measured"),
        ([bench("a", "ddp", 2, 1.0)], "saving", "no naive run"),
        ([bench("a", "naive", 2, 1.0)], "saving", "no other mode"),
        ([bench("a", "ddp", 2, 1.0)], "loss", "no losses"),
        ([replace(bench("a", "ddp", 2, 1.0), samples_per_s=None)], "throughput", "samples per second"),
        *(([Row("a", "ddp", 2, failed="broke")], chart, "") for chart in CHARTS),
    ],
)
def test_what_is_missing_is_said_in_the_charts_place(rows: list[Row], chart: str, words: str) -> None:
    """No baseline, no naive runs, no losses, no throughput, or only failed runs."""
    text = said(rows, chart)

    assert text.missing
    assert words in text.missing


def test_equal_losses_prove_equal_mathematics() -> None:
    """Sums in another order differ in the last digits; another training differs by more, at a named step."""
    one, two = bench("a", "single", 1, 1.0), bench("a", "ddp", 2, 1.0)
    close = [replace(one, losses=(2.3, 2.2, None)), replace(two, losses=(2.3000002, 2.2, 2.1))]
    apart = [replace(one, losses=(2.3, 2.2)), replace(two, losses=(2.3, 2.0))]
    nothing = [replace(one, losses=(None,)), replace(two, losses=(1.0,))]
    local = [replace(one, local_losses=(2.3,)), replace(two, local_losses=(2.4,))]

    assert "all 2 curves coincide (they differ by at most 2e-07)" in said(close, "loss").sentences[0]
    assert "differ by 0.2 at step 1" in said(apart, "loss").sentences[0]
    assert "no step" in said(nothing, "loss").sentences[0]
    assert "no other curve" in said(close[:1], "loss").sentences[0]
    assert "differ by up to 0.1" in said(local, "loss", local_loss=True).sentences[0]


def test_what_cannot_be_is_not_counted() -> None:
    """Communication is never more than the epoch; a row that is there twice counts once, a failed one not at all; two
    GPUs cannot be three times as fast, so the run on one GPU was slowed down."""
    (share,) = shares([replace(bench("a", "naive", 4, 1.0), comm_s=1.5)])
    twice = [bench("b", "ddp", 2, 1.0), bench("b", "ddp", 2, 9.0), bench("a", "ddp", 2, 2.0)]
    twice.insert(2, Row("a", "ddp", 2, failed="x"))
    slowed = with_speedup([bench("a", "single", 1, 3.0), bench("a", "ddp", 2, 1.0)])

    assert (0.0, 1.0, 1.0, 0.25) == pytest.approx((share.compute_s, share.comm_s, share.fraction, share.efficiency))
    assert [1.0, 2.0] == [row.epoch_s for row in usable(twice)]
    assert ["a", "b"] == models_by_size(twice)
    assert "DDP on 2 GPUs: 3.00×" in warnings_about(slowed)[0]
    assert "ceiling" not in said(slowed, "speedup").sentences[0]


def test_processes_on_cpu_are_called_so() -> None:
    """They share the cores: no sentence mentions GPUs or what splitting an epoch saves."""
    measured = [*rows(5, 0.01, a=1.5), replace(bench("a", "naive", 2, 1.6), comm_s=0.1, epochs=5)]
    text = " ".join(s for chart in conclusions(measured, on_cpu=True) for s in (chart.title, *chart.sentences))

    assert "one process is fastest" in text
    assert "GPU" not in text
    assert "can save" not in text
