"""What is different, as it was typed."""

from __future__ import annotations

from typing import Any

import pytest

from dptrace.commands.replaying.whatif_options import ChangeOptions
from dptrace.errors import UsageError


def test_one_option_may_have_several_values() -> None:
    """These are compared; one value is no sweep."""
    assert ("bucket_cap_mb", [1.0, 4.5]) == ChangeOptions(bucket_cap_mb="1,4.5", world_size="8").swept()
    assert ChangeOptions(bucket_cap_mb="1", world_size="8").swept() is None
    assert 8 == ChangeOptions(world_size="8").parsed()["world_size"]


@pytest.mark.parametrize(
    "typed", [{"bucket_cap_mb": "1,x"}, {"world_size": "1.5,2"}, {"bucket_cap_mb": "1,2", "world_size": "2,4"}]
)
def test_what_can_not_be_swept_is_refused(typed: dict[str, Any]) -> None:
    """No numbers, half a rank, and two sweeps at once."""
    with pytest.raises(UsageError):
        ChangeOptions(**typed).swept()


def test_bandwidth_is_a_factor_or_a_rate() -> None:
    """2x is a number, 25GBps stays text for the model to parse."""
    assert [2.0, "25GBps"] == [ChangeOptions(bandwidth=text).parsed()["bandwidth"] for text in ("2x", "25GBps")]
