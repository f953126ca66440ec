"""The results of timed epochs: of one, of all, as a sentence, and from a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from dptrace.errors import DptraceError
from dptrace.trainers.parts.epoch_results import epoch_line, epoch_result, epoch_text, epochs_before, results

SECOND = 1_000_000_000


def of(laps: Sequence[float], losses: Sequence[float]) -> dict[str, Any]:
    return {"laps": [round(SECOND * lap) for lap in laps], "losses": list(losses)}


def test_an_epoch_takes_as_long_as_its_slowest_rank() -> None:
    """Two epochs of two steps on two ranks; throughput is the samples of all ranks over the mean epoch."""
    first = epoch_result([of([1, 1], [1, 2]), of([1, 2], [3, 4])])
    second = epoch_result([of([1, 1], [3, 4]), of([1, 0], [5, 6])])
    found = results([first, second | {"accuracy": 0.5}], {"batch_size": 100, "mode": "naive"}, 2)

    assert [3.0, 2.0] == found["epoch_s"]
    assert [1.0, 2.0, 1.0, 1.0] == found["step_s"]
    assert [1.5, 1.0] == found["epoch_step_p50_s"]
    assert (2.5, 80.0) == (found["avg_epoch_s"], found["samples_per_s"])
    assert [2.0, 3.0, 4.0, 5.0] == found["losses"]
    assert [1, 2, 3, 4] == found["local_losses"]
    assert ([None, 0.5], "naive", 2) == (found["accuracy"], found["mode"], found["epochs"])
    assert "validation_loss" not in found


def test_losses_that_are_not_finite_are_reported_as_nothing() -> None:
    """JSON has no NaN."""
    found = epoch_result([of([1], [float("nan")])])

    assert [None] == found["losses"] == found["local_losses"]
    assert epoch_line(found, 1, 1, 10)["loss"] is None


def test_cold_steps_count_as_the_others_if_there_are_others() -> None:
    """An epoch shorter than that is taken as it is."""
    laps = [of([9, 9, 1, 3], [])]

    assert ([1.0, 3.0], 8.0) == (epoch_result(laps, 2)["step_s"], epoch_result(laps, 2)["seconds"])
    assert 22.0 == epoch_result(laps, 4)["seconds"]


def test_the_typical_step_is_that_of_the_last_twenty() -> None:
    """As is the loss."""
    line = epoch_line(epoch_result([of([5] * 10 + [1] * 20, [9] * 10 + [2] * 20)]), 1, 3, 140)

    assert (1.0, 2.0, 2.0) == (line["step_p50_s"], line["loss"], line["samples_per_s"])


def test_the_sentence_names_what_is_known() -> None:
    """Percent for shares, three digits for losses; without validation and recording, the time alone."""
    line = epoch_line(epoch_result([of([2, 3], [])]), 2, 3, 5000)
    more = {"validation_loss": 1.25, "accuracy": 0.5, "training_accuracy": 0.75, "communication_fraction": 0.125}

    assert "epoch 2 of 3: 5.00 s, 1,000 samples/s" == epoch_text(line)
    assert epoch_text(line | more).endswith(
        "s 12.5 %, training accuracy 75.0 %, validation loss 1.250, accuracy 50.0 %"
    )


EPOCH = {"seconds": 2.0, "step_s": [1.0, 1.0], "losses": [1.0, None], "local_losses": []}


@pytest.mark.parametrize(
    ("history", "right"),
    [
        ([EPOCH, EPOCH], True),
        ([EPOCH], False),
        ((), False),
        ("ab", False),
        ([EPOCH, {}], False),
        ([EPOCH, EPOCH | {"seconds": "2"}], False),
        ([EPOCH, EPOCH | {"step_s": []}], False),
        ([EPOCH, EPOCH | {"losses": ["x"]}], False),
        ([EPOCH, EPOCH | {"accuracy": "high"}], False),
    ],
)
def test_a_checkpoint_has_the_results_of_the_epochs_before_it(history: Any, right: bool) -> None:
    """One of a recording has none, and a stranger's may have anything."""
    options: Any = SimpleNamespace(first_step=13, warmup=3, steps_per_epoch=5, epoch_results=history)
    if right:
        assert history == epochs_before(options)
        return
    with pytest.raises(DptraceError, match="step 13 does not hold"):
        epochs_before(options)
