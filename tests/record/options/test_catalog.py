"""The declaration of the trainers' options."""

from __future__ import annotations

from typing import get_type_hints

import pytest

from dptrace.record.options.catalog import OPTIONS, Option, TrainerOptions, ratio
from dptrace.record.options.modes import MODES
from dptrace.record.options.parse import parse_options


def test_every_attribute_is_an_option_with_its_annotated_type() -> None:
    """No attribute lacks a declaration, and a default is of the type that the annotation promises."""
    hints = get_type_hints(TrainerOptions)

    assert list(hints) == [option.field for option in OPTIONS]
    assert all(option.default is None or isinstance(option.default, hints[option.field]) for option in OPTIONS)


def test_the_options_of_a_mode_follow_from_its_traits() -> None:
    """Each trait that an option names belongs to some mode; a few combinations as examples."""
    modes = {option.name: option.modes for option in OPTIONS}

    assert all(set(found) <= set(MODES) for found in modes.values())
    assert all(option.modes for option in OPTIONS if option.trait is not None)
    assert ("ddp", "accumulate") == modes["bucket-cap-mb"]
    assert ("hierarchical", "hsdp") == modes["ranks-per-node"]
    assert ("accumulate", "pp", "3d", "4d") == modes["micro-batches"]
    assert () == modes["lr"]


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_the_help_of_an_option_shows_its_default_and_its_few_modes(option: Option) -> None:
    """An option that not all modes take lists those that do, if they are few."""
    assert option.help in option.help_text
    assert option.default in (None, False, True) or str(option.default) in option.help_text
    assert not 0 < len(option.modes) < 4 or option.help_text.startswith(", ".join(option.modes))


def test_an_option_that_a_mode_does_not_take_has_its_default() -> None:
    """A trainer can read any option; only those that the mode takes go into run.json."""
    options = parse_options("", "naive", [])

    assert ("none", None) == (options.compress, options.checkpoint_every)
    assert not {"compress", "checkpoint_every"} & set(options.record_arguments["options"])


def test_an_option_is_declared_by_one_attribute() -> None:
    """Name, attribute and default follow from the declaration."""

    class Extended(TrainerOptions):
        grad_steps = Option("training", "An option.", type=int, default=3)

    assert (Option, "grad-steps", "grad_steps") == (
        type(Extended.grad_steps),
        Extended.grad_steps.name,
        Extended.grad_steps.field,
    )
    assert 3 == Extended().grad_steps


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "nan", "much"])
def test_a_share_is_above_zero_and_at_most_one(text: str) -> None:
    """Anything else is refused as a value of --topk-ratio."""
    with pytest.raises(ValueError, match=r".+"):
        ratio(text)
