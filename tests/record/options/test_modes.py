"""The table of trainer modes."""

from __future__ import annotations

import pytest

from dptrace.errors import UsageError
from dptrace.record.options.modes import FAMILIES, MLPS, MODELS, MODES, complete_mode, trainer


@pytest.mark.parametrize("mode", sorted(MODES))
def test_each_mode_is_a_file_that_says_its_idea(mode: str) -> None:
    """A mode has a trainer, whose docstring contains the two commands that start it."""
    text = trainer(mode).read_text(encoding="utf-8")

    assert f"dptrace record --mode {mode}" in text
    assert trainer(mode).name in text


def test_an_unknown_mode_lists_the_known() -> None:
    """The message lists every mode with its description."""
    with pytest.raises(UsageError) as error:
        trainer("naiv")

    assert all(f"{mode}" in str(error.value) and known.description in str(error.value) for mode, known in MODES.items())


def test_newcomers_see_the_four_first() -> None:
    """The first family holds the four basic modes, and every mode is in a family."""
    assert ["single", "naive", "interleaved", "ddp"] == [name for name, mode in MODES.items() if mode.family == "first"]
    assert {mode.family for mode in MODES.values()} <= set(FAMILIES)


def test_shells_complete_the_modes() -> None:
    """Completion offers the modes that begin with the typed text."""
    assert (["interleaved"], list(MODES)) == (complete_mode(None, None, "inter"), complete_mode(None, None, ""))


# The table of models.


def test_every_model_can_be_trained_as_it_is() -> None:
    """The default batch is divisible by 8 ranks, and the optimizer exists."""
    assert set(MLPS) <= set(MODELS)
    assert all(model.batch_size % 8 == 0 and model.optimizer in ("sgd", "adamw") for model in MODELS.values())
    assert all(model.lr > 0 and model.weight_decay >= 0 for model in MODELS.values())
