"""A delay: time that one rank lost in one segment of the program, with its cause and what it cost the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["CAUSES", "Arrival", "Cause", "Delay", "Key"]

CAUSES = (
    "compute",
    "memory_copies",
    "data_loading",
    "allocator",
    "synchronizing",
    "host_bound",
    "python",
    "slower_host",
    "nothing_recorded",
    "unlevel_start",
    "before_recording",
    "uneven_end",
    "passed_on",
    "unknown",
)
"""Why a rank was late: its device computed or copied longer; its host loaded data, allocated memory, synchronized,
was in an operator, in Python code outside operators, or slower throughout; its host did nothing that is recorded; its
recording began at another point of the program, or the work was launched before it; it left an earlier collective
later; it waited for another rank itself; or the trace does not show why."""


class Cause(NamedTuple):
    """Why a rank lost time in a segment."""

    kind: str
    """One of CAUSES."""
    what: str = ""
    where: str = ""


class Key(NamedTuple):
    """A delay: a device, the program point at the end of the segment, and the cause."""

    device: int
    point: int
    cause: Cause


@dataclass
class Delay:
    """Time that one rank lost in one segment of the program, and what it cost the others."""

    device: int
    cause: str
    """One of CAUSES."""
    what: str
    """The call, operator, kernel or annotation; empty where there is none or there are many."""
    where: str
    """The annotation or operator around it; may be empty."""
    waiting: tuple[int, ...]
    """The devices that waited, at the collective where it was largest."""
    start_ns: int
    end_ns: int
    """The segment, on the device's own clock; both 0 if it is before the first program point."""
    group_size: int = 0
    """Number of ranks in the group: those that wait, and those that are late."""
    late_ns: int = 0
    """The largest lateness it caused."""
    cost_ns: float = 0.0
    """Exposed wait of the mean early rank, over all collectives it reached."""
    collectives: list[int] = field(default_factory=list)
    """The collectives it reached, by index into the matches."""


@dataclass
class Arrival:
    """One late rank at one collective."""

    instance: int
    device: int
    late_ns: int
    cost_ns: float
    delay: Key
