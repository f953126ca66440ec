"""What a simulation records: steps with messages and work, what each rank holds before and after, and the cost."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

__all__ = ["Cell", "Cost", "Explanation", "Message", "Outcome", "State", "Step", "Work", "letter", "verify"]


class Cell(msgspec.Struct, frozen=True):
    """What one rank holds in one column of the picture."""

    label: str
    """Its content by origin, such as ``A0+B0``: chunk 0 of ranks 0 and 1; empty if it holds nothing."""
    state: str
    """``empty``, ``own`` (the rank's own data), ``partial`` (part of a result), ``copy`` (another's data) or
    ``done`` (a result)."""
    values: tuple[float, ...] = ()
    """The numbers themselves, as many as the simulated chunk has."""
    parts: int = 1
    """How many ranks' data it contains."""


State = tuple[tuple[Cell, ...], ...]
"""One row per rank, one cell per column."""


class Message(msgspec.Struct, frozen=True):
    """One message from a rank to another."""

    source: int
    target: int
    column: int
    """The column it leaves from."""
    into: int
    """The column it arrives in."""
    label: str
    """Its content by origin, before it is added to anything."""
    values: tuple[float, ...]
    bytes: float
    adds: bool = False
    """Whether the receiver adds it to what it has; it replaces that otherwise."""
    between_nodes: bool = False
    """Whether it takes the link between nodes instead of the one within a node."""
    columns: int = 1
    """How many columns it carries, from *column* on."""
    count: int = 1
    """How many messages, one after the other, it stands for: P-1 for a rank's part of a ring."""


class Work(msgspec.Struct, frozen=True):
    """What a rank does over a span of time; times are in units, see :attr:`Explanation.unit`."""

    rank: int
    lane: str
    """``compute`` or ``communication``; two lanes of a rank run at the same time."""
    kind: str
    """``forward``, ``backward``, ``weight`` (gradients of weights), ``optimizer``, ``communication`` or ``other``."""
    label: str
    start: float
    end: float


class Step(msgspec.Struct, frozen=True):
    """What happens at once."""

    number: int
    """From 1."""
    phase: str
    title: str
    messages: tuple[Message, ...]
    before: State
    after: State
    work: tuple[Work, ...] = ()
    """The work that begins in this step."""
    start: float | None = None
    """When it begins, in units, for explanations with a time axis."""
    end: float | None = None
    text: str = ""
    """A remark on what is special in this step."""


class Cost(msgspec.Struct, frozen=True):
    """Volume and time for a message of real size."""

    size_bytes: float
    """n, the size that ``--bytes`` gives."""
    counted: str
    """What n counts."""
    sent_bytes: tuple[float, ...]
    """Bytes that each rank sends."""
    received_bytes: tuple[float, ...]
    """Bytes that each rank receives."""
    messages: int
    """Messages of the busiest rank, one after the other: how often a latency is paid."""
    formula: str
    """The time as a formula; P is the number of ranks, n the bytes."""
    numbers: str
    """The same with numbers."""
    seconds: float
    """Time by the alpha-beta model."""
    links: tuple[str, ...] = ()
    """The links with their alpha and bandwidth."""
    figures: dict[str, float] = {}
    """Further figures by name, with the unit in the name."""
    sentences: tuple[str, ...] = ()
    """The same, and what to keep in mind, for people."""


class Outcome(msgspec.Struct, frozen=True):
    """What a simulation returns."""

    columns: tuple[str, ...]
    steps: tuple[Step, ...]
    cost: Cost
    checked: str
    unit: str = ""


class Explanation(msgspec.Struct, frozen=True):
    """An algorithm, step by step, and what it costs."""

    name: str
    title: str
    about: str
    ranks: int
    options: dict[str, float]
    rows: tuple[str, ...]
    """Names of the ranks."""
    columns: tuple[str, ...]
    """Names of the columns of every state; empty where only the time axis matters."""
    steps: tuple[Step, ...]
    cost: Cost
    checked: str
    """What was compared with NumPy's result, and found equal."""
    unit: str = ""
    """What one unit of time is; empty without a time axis."""

    @property
    def work(self) -> tuple[Work, ...]:
        """All work of all steps."""
        return tuple(work for step in self.steps for work in step.work)

    @property
    def messages(self) -> tuple[Message, ...]:
        """All messages of all steps."""
        return tuple(message for step in self.steps for message in step.messages)


def letter(rank: int) -> str:
    """Return the letter that stands for a rank's data: A, B, … Z, then AA, AB, ….

    >>> letter(0), letter(25), letter(26)
    ('A', 'Z', 'AA')
    """
    letters = string.ascii_uppercase
    return letters[rank] if rank < len(letters) else letters[rank // len(letters) - 1] + letters[rank % len(letters)]


def verify(actual: ArrayLike, expected: ArrayLike, what: str) -> None:
    """Compare a simulated result with NumPy's; floating-point numbers up to rounding.

    Raises:
        AssertionError: they differ, so that nothing wrong is ever drawn.
    """
    import numpy as np

    one, other = np.asarray(actual), np.asarray(expected)
    if one.shape != other.shape or not np.allclose(one, other, rtol=1e-9, atol=1e-9):
        raise AssertionError(f"the simulation of {what} does not end with NumPy's result")
