"""Sweeps: values, combinations, figures of each point, conclusions, the choice of the line, the onset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dptrace.bench.bucket_caps import FittedLine, fit_from_links, fit_recorded
from dptrace.bench.conclusions import onset_sentences
from dptrace.bench.execute import Job
from dptrace.bench.sweep import sweep_result
from dptrace.bench.sweep_points import BUCKET_CAP, Point, configs, find_onset, values
from dptrace.errors import DptraceError
from dptrace.model.alpha_beta import Line
from dptrace.model.link_report import link_report
from tests.support.links_samples import measured
from tests.support.sweeps import GRADIENTS, LINE, make_sweep, read, result

CAPS = {BUCKET_CAP: ("0.5", "1", "2", "4", "8")}
TIMES = {"0.5": 0.200, "1": 0.190, "2": 0.180, "4": 0.160, "8": 0.170}


def of(times: dict[str, float], **more: Any) -> dict[str, dict[str, Any]]:
    return {value: result(seconds, **more) for value, seconds in times.items()}


def test_several_options_make_every_combination() -> None:
    """Of values as the trainers read them, each once; those that differ only in their cap follow each other."""
    caps = values(BUCKET_CAP, "1, 4,4.0")
    found = configs("accumulate", "small", 2, {"micro-batches": ("1", "2"), BUCKET_CAP: caps, "batch-size": ("64",)})

    assert len({config.name for config in found}) == 4
    assert found[0].options == ((BUCKET_CAP, "1"), ("micro-batches", "1"), ("batch-size", "64"))
    assert [dict(config.options)[BUCKET_CAP] for config in found] == ["1", "4", "1", "4"]
    assert "at least twice" in str(fit_recorded({found[0]: read(1000)}))  # one size of message makes no line
    assert "no recorded all-reduce" in str(fit_recorded({}))


def test_a_point_shows_the_last_steps_and_the_recorded_split(tmp_path: Path) -> None:
    """The ten slow first steps do not count; s is communication over communication and compute."""
    outcome = make_sweep(tmp_path, CAPS, of(TIMES)).result
    point = outcome.content["points"][3]

    assert point["label"] == "4 MiB"
    assert point["steps"] == 20
    assert point["step_p50_s"] == pytest.approx(0.160)
    assert 0.160 < point["step_p95_s"] < 0.161
    assert point["samples_per_s"] == pytest.approx(128 / 0.160)
    assert point["collectives"] == 3
    assert point["bytes"] == sum(GRADIENTS)
    assert point["communication_fraction"] == pytest.approx(point["comm_s"] / (0.1 + point["comm_s"]))


COMM_S = read(1).comm_s


@pytest.mark.parametrize(
    ("option", "steps", "sentence", "facts"),
    [
        (
            BUCKET_CAP,
            of(TIMES),
            0,
            ["4 MiB is best here: 20 % less time per step than 0.5", "20 per step at", "grows"],
        ),
        (BUCKET_CAP, {"1": result(0.1), "4": result(0.1001)}, 0, ["No value is clearly best"]),
        (BUCKET_CAP, {"1": result(0.1, steps=3), "4": result(0.3, steps=3)}, 0, ["differ by 200 %", "3 steps cannot"]),
        (
            *("batch-size", {"64": result(0.10, batch_size=64), "128": result(0.15, batch_size=128)}, 0),
            ["batch 128 is best here: 25 % less time per sample than batch 64"],
        ),
        (BUCKET_CAP, {"1": result(0.1 + 2 * COMM_S), "4": result(0.1)}, 1, ["Do not trust this: 1 MiB is slower"]),
        (BUCKET_CAP, {"1": result(0.1 + COMM_S), "4": result(0.1)}, -1, ["By alpha + beta"]),
    ],
)
def test_the_sentences_say_what_the_figures_can_show(
    tmp_path: Path, option: str, steps: dict[str, dict[str, Any]], sentence: int, facts: list[str]
) -> None:
    """By how much the best beats the worst, and why; nothing where the steps scatter as much, or are few; a doubt where
    buckets cannot explain a difference, since it is more than all communication takes."""
    content = make_sweep(tmp_path, {option: tuple(steps)}, steps).result.content
    marked = [point["best"] for point in content["points"]]

    assert all(fact in content["reading"][sentence] for fact in facts), content["reading"]
    assert ("No value" not in content["reading"][0]) == any(marked)
    assert any(marked) or not any(point["as_good"] for point in content["points"])


def test_the_line_is_found_again_and_chooses_what_exposes_least(tmp_path: Path) -> None:
    """The fit recovers the line that the all-reduces lie on, and its predictions equal the measurements. Without the
    parameters' sizes, as of a user's trainer, the finest buckets stand for the gradients."""
    content = make_sweep(tmp_path, CAPS, of(TIMES)).result.content
    assert make_sweep(tmp_path / "b", CAPS, of(TIMES, parameter_bytes=[])).result.content["chosen"]
    (chosen,) = content["chosen"]
    exposed = {point["options"][BUCKET_CAP]: point["exposed_s"] for point in content["points"]}

    assert content["fit"]["alpha_s"] == pytest.approx(LINE.alpha_s)
    assert content["fit"]["beta_s_per_byte"] == pytest.approx(LINE.beta_s_per_byte)
    for point in content["points"]:
        assert point["predicted_exposed_s"] == pytest.approx(point["exposed_s"], abs=1e-6)
        assert point["predicted_collectives"] == point["collectives"]
    assert exposed[f"{chosen['tried_mb']:g}"] == pytest.approx(min(exposed.values()))
    assert chosen["best_exposed_s"] <= 1.021 * chosen["tried_exposed_s"]
    assert chosen["closed_form_mb"] == pytest.approx((sum(GRADIENTS) * 1e-3 / 4e-9) ** 0.5 / 2**20)
    assert "[95 %: " in content["reading"][1]
    assert f"{chosen['tried_mb']:g} MiB is the best of the tried caps" in content["reading"][1]


def test_compressed_points_are_neither_fitted_nor_predicted(tmp_path: Path) -> None:
    """They do not send the bytes of the gradients."""
    steps = {f"{cap},{how}": result(0.1) for cap in ("1", "4") for how in ("none", "fp16")}
    content = make_sweep(tmp_path, {BUCKET_CAP: ("1", "4"), "compress": ("none", "fp16")}, steps).result.content
    predicted = {point["options"]["compress"]: point["predicted_exposed_s"] for point in content["points"]}

    assert predicted["fp16"] is None
    assert predicted["none"] is not None
    assert len(content["chosen"]) == 1


@pytest.mark.parametrize(
    ("fitted", "why"),
    [
        (FittedLine(Line(8.4e-3, 0.0), "x", 0.0, (8e-3, 9e-3), (0.0, 0.0), 5), "all-reduces did not take longer"),
        (FittedLine(LINE, "x", 1.0, sizes=2), "2 different sizes"),
        (FittedLine(LINE, "x", 0.2, sizes=5), "explains only 20 %"),
        (FittedLine(LINE, "x", 0.9, (0.0, 1e-3), (0.0, 9e-9), 5), "between 0 and 9 ns"),
    ],
)
def test_a_line_that_explains_nothing_chooses_nothing(
    fitted: FittedLine, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The poor figure stands in place of a choice, and no point has a prediction."""
    monkeypatch.setattr("dptrace.bench.sweep.fit_recorded", lambda read: fitted)
    content = make_sweep(tmp_path, CAPS, of(TIMES)).result.content

    assert why in content["reading"][-1]
    assert "best of the tried caps" not in " ".join(content["reading"])
    assert content["chosen"] == []
    assert all(point["predicted_exposed_s"] is None for point in content["points"])


@pytest.mark.heavy
def test_a_line_measured_apart_is_taken_for_as_many_ranks_only() -> None:
    """A file of other ranks or without an all-reduce is refused, with the command to run."""
    content = link_report(measured(ranks=2))

    assert fit_from_links(content, "l.json", 2).line.alpha_s > 0
    with pytest.raises(DptraceError, match="among 2 ranks, but this sweep has 4"):
        fit_from_links(content, "l.json", 4)
    with pytest.raises(DptraceError, match="no fit of all_reduce"):
        fit_from_links(link_report(measured(ranks=2, kinds=("send_recv",))), "l.json", 2)


def test_epochs_and_buckets_are_rows(tmp_path: Path) -> None:
    """Accuracy after each epoch, or only the final one where there are no others; a row for each bucket."""
    more: dict[str, Any] = {"validation_loss": [2.0, 1.5], "epoch_step_p50_s": [0.1, 0.2]}
    steps = {"1": result(0.1, epochs=2, accuracy=[0.5, 0.75], **more), "4": result(0.2, epochs=2, accuracy=0.25)}
    outcome = make_sweep(tmp_path, {BUCKET_CAP: ("1", "4")}, steps, epochs=2).result

    assert [row["validation_accuracy"] for row in outcome.epochs] == [0.5, 0.75, None, 0.25]
    assert [row["epoch"] for row in outcome.epochs] == [1, 2, 1, 2]
    assert [row["validation_loss"] for row in outcome.epochs] == [2.0, 1.5, None, None]
    assert [row["step_p50_s"] for row in outcome.epochs] == [0.1, 0.2, None, None]
    assert outcome.content["by_epoch"] == outcome.epochs
    assert outcome.content["points"][0]["validation_loss"] == 1.5
    assert outcome.epochs[0]["samples_per_s"] == pytest.approx(128 * 30 / outcome.epochs[0]["seconds"])
    assert outcome.epochs[0]["communication_fraction"] == read(1).fraction
    assert outcome.content["points"][0]["accuracy"] == 0.75
    assert len(outcome.buckets) == len(read(1).buckets) + len(read(4).buckets)
    assert outcome.buckets[0][BUCKET_CAP] == "1"


@pytest.mark.parametrize(("saved", "why"), [({"failed": "no traces"}, "no traces"), ({"comm_s": 1.0}, "version")])
def test_recordings_that_can_not_be_read_are_reported(tmp_path: Path, saved: dict[str, Any], why: str) -> None:
    """The timed figures are shown without them."""
    sweep = make_sweep(tmp_path, {BUCKET_CAP: ("1", "4")}, of({"1": 0.1, "4": 0.2}))
    for config in sweep.asked.configs:
        sweep.store.save(Job(config, -1).name, saved)
    content = sweep_result(sweep.asked, sweep.store).content

    assert content["points"][0]["exposed_s"] is None
    assert content["reading"] == ["1 MiB is best here: 50 % less time per step than 4 MiB."]
    assert sum(why in note for note in content["notes"]) == 2


# Where less communication stops to pay.


def caps(*figures: tuple[str, float | None, float | None]) -> list[Point]:
    return [Point({BUCKET_CAP: cap}, cap, communication_fraction=s, validation_loss=loss) for cap, s, loss in figures]


@pytest.mark.parametrize(
    ("points", "factor", "diminishing", "harmful"),
    [
        # Each doubling halves s, and no loss grows.
        (caps(("0.5", 0.8, 2.0), ("1", 0.4, 2.01), ("2", 0.2, 2.0), ("4", 0.1, 1.99)), 0.5, None, None),
        # A step over two doublings counts as two: from 1 to 4, 0.32 is 0.8 each.
        (caps(("8", 0.245, 2.0), ("1", 0.5, 2.0), ("4", 0.32, 2.0), ("16", 0.25, 2.0)), 0.8, "8", None),
        # One bad point among good ones is no onset.
        (caps(("1", 0.4, 2.0), ("2", 0.2, 2.5), ("4", 0.1, 2.01), ("8", 0.05, 2.2)), 0.5, None, "8"),
    ],
)
def test_returns_diminish_and_harm_begins_from_where_it_stays_so(
    points: list[Point], factor: float, diminishing: str | None, harmful: str | None
) -> None:
    """No further doubling lowers s by a tenth; the loss stays more than 1 % above the least."""
    onset = find_onset(points, [BUCKET_CAP])

    assert onset is not None
    assert sorted(onset.order, key=float) == onset.order
    assert pytest.approx(factor) == onset.steps[0].factor
    assert (diminishing, harmful) == (onset.diminishing, onset.harmful)
    said = onset_sentences(onset)
    assert ("no value is reached" if diminishing is None else f"from {diminishing} on") in said[0]
    assert ("within 1 %" if harmful is None else f"From {harmful} on") in said[1]


@pytest.mark.parametrize("missing", [("2", None, 2.0), ("2", 0.3, None), ("2", 0.0, 2.0)])
def test_without_two_points_there_is_no_onset(missing: tuple[str, float | None, float | None]) -> None:
    """A point without a recording, without validation data, or of one rank; words are ordered by s."""
    words = [
        Point({"compress": v}, v, communication_fraction=s, validation_loss=2.0) for v, s in (("a", 0.1), ("b", 1))
    ]
    onset = find_onset(words, ["compress"])

    assert onset is not None
    assert (["b", "a"], []) == (onset.order, onset.steps)
    assert find_onset(caps(("1", 0.5, 2.0), missing), [BUCKET_CAP]) is None
    assert [] == onset_sentences(None)
