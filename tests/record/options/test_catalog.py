"""The options of trainers."""

from __future__ import annotations

import pytest

from dptrace.record.options.catalog import OPTIONS
from dptrace.record.options.modes import MODES


def test_options_are_for_modes_that_there_are() -> None:
    """A mode that was renamed would lose its option silently; and no option is told twice."""
    assert all(set(option.modes) <= set(MODES) for option in OPTIONS)
    assert len({option.field for option in OPTIONS}) == len(OPTIONS)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_an_option_tells_its_default_and_its_few_modes(option: object) -> None:
    """What is not for all says for which, where these are few enough to read."""
    assert option in OPTIONS
    (known,) = [one for one in OPTIONS if one is option]
    told = known.help_text
    assert known.help in told
    assert (known.default in (None, False)) or str(known.default) in told
    assert not 0 < len(known.modes) < 4 or told.startswith(", ".join(known.modes))
