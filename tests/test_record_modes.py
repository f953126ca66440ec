"""The ways to train that there are."""

from __future__ import annotations

import pytest

from dptrace.errors import UsageError
from dptrace.record.modes import MODES, complete_mode, trainer


@pytest.mark.parametrize("mode", sorted(MODES))
def test_each_mode_is_a_file_that_says_its_idea(mode: str) -> None:
    """A mode leads to its trainer, whose docstring gives the two launch lines."""
    text = trainer(mode).read_text(encoding="utf-8")

    assert f"dptrace record --mode {mode}" in text
    assert f"{mode}.py" in text


def test_an_unknown_mode_lists_the_known() -> None:
    """With the idea of each, so that one can choose."""
    with pytest.raises(UsageError) as error:
        trainer("naiv")

    assert all(f"{mode}" in str(error.value) and idea in str(error.value) for mode, idea in MODES.items())


def test_shells_complete_the_modes() -> None:
    """By what was typed of them."""
    assert (["interleaved"], list(MODES)) == (complete_mode(None, None, "i"), complete_mode(None, None, ""))
