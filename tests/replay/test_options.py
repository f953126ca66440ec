"""The options of a what-if as text."""

from __future__ import annotations

import pytest

from dptrace.errors import UsageError
from dptrace.replay.options import changes_of, parse_factor, parse_kernel, parse_straggler


def test_values_are_parsed() -> None:
    """A factor with or without ×, a pattern with any character, and times in every unit."""
    texts = ("2x", "0.5", " 1.25× ", "1e6x", ".5x", "1E-2")
    assert [2.0, 0.5, 1.25, 1e6, 0.5, 0.01] == [parse_factor(text, "--compute") for text in texts]
    assert ("a=b|c", 0.5) == parse_kernel("a=b|c=0.5x")
    assert [(2, 20_000_000), (0, 1_500), (1, 7)] == list(map(parse_straggler, ("2=20ms", "0=1.5us", "1=7ns")))


def test_a_factor_of_the_bandwidth_may_be_text() -> None:
    """As on the command line; a rate is another change."""
    assert changes_of(bandwidth=2) == changes_of(bandwidth="2x") != changes_of(bandwidth="2GBps")
    with pytest.raises(UsageError):
        changes_of(bandwidth="0x")


@pytest.mark.parametrize("text", ["", "x", "-1", "0", "0e5", "nan", "1e", "2xx"])
def test_what_is_no_factor_is_refused(text: str) -> None:
    """Neither is zero, a negative number, or another spelling."""
    with pytest.raises(UsageError):
        parse_factor(text, "--compute")


def test_a_bad_factor_of_a_kernel_is_named_as_it_was_typed() -> None:
    """The message holds the whole value, as one word."""
    with pytest.raises(UsageError, match=r"--kernel \.\*=0x:"):
        parse_kernel(".*=0x")


@pytest.mark.parametrize("text", ["2", "2=20", "a=20ms", "2=20m", "=20ms"])
def test_what_is_no_straggler_is_refused(text: str) -> None:
    """A rank, a time and its unit are needed."""
    with pytest.raises(UsageError):
        parse_straggler(text)


def test_levelling_comes_before_a_new_straggler() -> None:
    """Ranks are levelled as recorded; the straggler that is asked for stays."""
    changes = changes_of(straggler={1: 5}, no_straggler=True, compute=2)

    assert ["no straggler", "compute 2×", "rank 1 5 ns late in each step"] == [one.describe() for one in changes]


def test_a_negative_delay_is_refused() -> None:
    """No host is early."""
    with pytest.raises(UsageError):
        changes_of(straggler={0: -1})


def test_an_option_that_is_none_is_a_type_error() -> None:
    """A misspelled keyword would otherwise be answered with a replay of the run as it was."""
    with pytest.raises(TypeError, match="banwidth"):
        changes_of(banwidth=2)  # type: ignore[call-arg]
