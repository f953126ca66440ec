"""The fields of events."""

from __future__ import annotations

import json

import msgspec
import pytest

from dptrace.readers.kineto.event_schema import SPAN, UNKNOWN, as_count, code_of, event_decoder
from dptrace.readers.trace import Category


def text(*events: object) -> bytes:
    return json.dumps(list(events)).encode()


@pytest.mark.parametrize(
    ("other", "known"),
    [*((phase, True) for phase in "sftiMC"), *((phase, False) for phase in ("B", "E", "Ω", "XX", ""))],
)
def test_only_complete_events_are_looked_into(other: str, known: bool) -> None:
    """Fields of events of other phases are not decoded, so that errors in them do not matter; unknown ones count."""
    odd = {"ph": other, "ts": {}, "name": [1], "args": 5}

    count, unknown, complete = event_decoder().decode(text(odd, {"ph": "X", "name": "a"}, odd))

    assert (3, 0 if known else 2, ["a"]) == (count, unknown, [event.name for event in complete])


def test_the_phase_may_stand_anywhere() -> None:
    """Files of other tools start events with another key."""
    written = b'[{"name": "a", "ts": 1.5, "ph": "X"}, {"id": 1, "ts": 2, "ph": "s"}]'

    count, unknown, (event,) = event_decoder().decode(written)
    assert (2, 0, "a", 1.5) == (count, unknown, event.name, event.ts)


@pytest.mark.parametrize("bad", [{"ph": "X", "ts": {}}, {"ph": "X", "args": 5}, {"ph": 5}, 7, None])
def test_what_is_no_event_is_damage(bad: object) -> None:
    """A complete event with fields of a wrong type, or a value that is not an event, is an error in any list."""
    for other in ({"ph": "s"}, {"ph": "Ω"}):
        with pytest.raises(msgspec.MsgspecError):
            event_decoder().decode(text({"ph": "X"}, bad, other))


def test_times_keep_their_digits_when_asked() -> None:
    """Exact decoding keeps every digit."""
    (event,) = event_decoder(exact=True).decode(b'[{"ph": "X", "ts": 1712195495519689.047}]')[2]

    assert "1712195495519689.047" == str(event.ts)


def test_categories_of_every_year_are_known() -> None:
    """The spellings of 2021 and of today, Kineto's own span, unused and unknown categories."""
    names = ("python_function", "cpu_op", "Operator", "hip_runtime", "Kernel", "gpu_memset", "Trace")
    codes = [code_of(name) for name in names]

    expected = [Category.PYTHON, Category.CPU_OP, Category.CPU_OP, Category.LAUNCH, Category.KERNEL, Category.MEMORY]
    assert [*expected, SPAN] == codes
    assert UNKNOWN > code_of("overhead") > SPAN
    assert {UNKNOWN} == {*map(code_of, ("hpu_op", "", None))}


@pytest.mark.parametrize(
    ("value", "count"),
    [
        *((5, 5), (5.0, 5), ("5", 5), (0, 0), (2**62 - 1, 2**62 - 1)),
        *((2**62, None), (10**400, None), ("9" * 400, None), (5.5, None), (float("inf"), None), (1e300, None)),
        *((-5, None), (True, None), ("0x7f", None), ("", None), (None, None), ([5], None)),
    ],
)
def test_whole_numbers_are_counts_however_they_are_spelled(value: object, count: int | None) -> None:
    """A float or a string may be a whole number; what does not fit 62 bits is none."""
    assert count == as_count(value)
