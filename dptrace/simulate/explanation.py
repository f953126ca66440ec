"""What a simulation records: steps with messages and work, what each rank holds before and after, and the cost."""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from dptrace.core.numbers import Number
from dptrace.core.units import duration
from dptrace.errors import UsageError
from dptrace.model.gpu_peaks import BANDWIDTH_GBPS, LATENCY_US
from dptrace.model.training.communication import Link, nominal_network

if TYPE_CHECKING:
    from numpy.typing import ArrayLike


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
    text: str | None = None
    """A remark on what is special in this step; None without one."""


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


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a simulation returns."""

    columns: tuple[str, ...]
    """Names of the columns of every state; empty where only the time axis matters."""
    steps: tuple[Step, ...]
    cost: Cost
    checked: str
    """What was compared with NumPy's result, and found equal."""
    unit: str | None = None
    """What one unit of time is; None without a time axis."""


class Explanation(Outcome, frozen=True, kw_only=True):
    """An algorithm, step by step, and what it costs."""

    name: str
    title: str
    about: str
    ranks: int
    options: dict[str, float]
    rows: tuple[str, ...]
    """Names of the ranks."""

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


# What a simulation is asked for, and the links that its cost is computed for.


DEFAULT_BYTES = 100e6
DEFAULT_LINK = "nvlink4"

MAX_RANKS = 32
"""Of a picture: a state of n ranks has n² cells, and a ring 2(n−1) states."""


BYTES = Number(above=0, most=1e18)
"""Sizes of messages and buckets."""


def links_of(names: str | None, alpha_us: float | None, bandwidth_gbps: float | None) -> tuple[Link, Link]:
    """Return the link within nodes and the one between nodes.

    Args:
        names: ``nvlink4``, ``nvlink4,ib-ndr`` or ``5us:12.5GB/s``.
        alpha_us, bandwidth_gbps: latency in µs and bandwidth in GB/s of one typed link, instead of *names*.

    Raises:
        UsageError: a name is unknown, or only half of a link is given, or both a name and figures.
    """
    typed = [value for value in (alpha_us, bandwidth_gbps) if value is not None]
    if typed and names is not None:
        raise UsageError("--link names a link, --alpha and --bandwidth describe one; give either.")
    if alpha_us is not None and bandwidth_gbps is not None:
        LATENCY_US.check(alpha_us, "--alpha")
        BANDWIDTH_GBPS.check(bandwidth_gbps, "--bandwidth")
        own = Link("", alpha_us * 1e-6, bandwidth_gbps * 1e9)
        return own, own
    if typed:
        raise UsageError("--alpha and --bandwidth describe a link together; give both.")
    network = nominal_network(DEFAULT_LINK if names is None else names)
    return network.within, network.between


class Settings(msgspec.Struct, frozen=True):
    """The options of all explanations; each uses those that its entry in the catalog names."""

    ranks: int
    size_bytes: float
    link: Link
    """Within a node."""
    between: Link
    """Between nodes; the same where there is one kind of link."""
    node_size: int | None = None
    micro_batches: int | None = None
    chunks: int = 2
    layers: int | None = None
    bucket_bytes: float | None = None
    tokens: int = 6
    top_k: int = 1
    capacity_factor: float = 1.25
    stage: int = 3

    def node_of(self, rank: int) -> int:
        """Return the number of a rank's node; all are on node 0 without a node size."""
        return rank // self.node_size if self.node_size else 0

    def message(self, source: int, target: int, label: str, size: float, **more: Any) -> Message:
        """Return a message over the link that these two ranks have; *more* are further fields."""
        between = self.node_of(source) != self.node_of(target)
        column = more.pop("column", 0)
        fields = {"values": (), "into": column} | more
        return Message(source, target, column, label=label, bytes=size, between_nodes=between, **fields)


# The volume and the time of what a simulation sent, by the alpha-beta model.


def megabytes(size: float) -> str:
    """Format bytes in MB from 0.1 MB on, so that volumes are comparable at a glance.

    >>> megabytes(1_248e6), megabytes(312_500_000), megabytes(4096)
    ('1,248 MB', '312.5 MB', '4,096 B')
    """
    if size < 1e5:
        return f"{size:,.0f} B"
    return f"{size / 1e6:,.{0 if size % 1e6 == 0 or size >= 1e9 else 1}f} MB"


class Time(NamedTuple):
    """What one link has to carry, one message after the other: t = messages·alpha + bytes·beta."""

    messages: int = 0
    size: float = 0.0

    def __add__(self, other: object) -> Time:
        assert isinstance(other, Time)
        return Time(self.messages + other.messages, self.size + other.size)


def volumes(ranks: int, messages: Iterable[Message]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the bytes that each rank sends, and that each receives."""
    sent, received = [0.0] * ranks, [0.0] * ranks
    for message in messages:
        sent[message.source] += message.bytes
        received[message.target] += message.bytes
    return tuple(sent), tuple(received)


def critical_time(steps: Sequence[Step], settings: Settings) -> tuple[Time, Time]:
    """Return what the busiest links carry, within nodes and between nodes, summed over the steps.

    A rank's link carries the messages of a step one after the other, in each direction at its own time; the slowest
    rank of a step holds up the next step.
    """
    inside, across = Time(), Time()
    for step in steps:
        busiest = max(_loads(step, settings), key=lambda load: _seconds(load, settings), default=None)
        if busiest is not None:
            inside, across = inside + busiest[0], across + busiest[1]
    return inside, across


def _loads(step: Step, settings: Settings) -> list[tuple[Time, Time]]:
    """Return what each rank sends, and what each receives, within and between nodes."""
    loads: dict[tuple[str, int], tuple[Time, Time]] = {}
    for message in step.messages:
        for end in (("out", message.source), ("in", message.target)):
            inside, across = loads.get(end, (Time(), Time()))
            one = Time(message.count, message.bytes)
            loads[end] = (inside, across + one) if message.between_nodes else (inside + one, across)
    return list(loads.values())


def _seconds(times: tuple[Time, Time], settings: Settings) -> float:
    links = (settings.link, settings.between)
    return sum(t.messages * link.alpha_s + t.size / link.bytes_per_s for t, link in zip(times, links, strict=True))


def cost_of(
    steps: Sequence[Step],
    settings: Settings,
    counted: str,
    formula: str,
    sentences: Sequence[str] = (),
    figures: dict[str, float] | None = None,
    expected_s: float | None = None,
    times: tuple[Time, Time] | None = None,
) -> Cost:
    """Return the cost of a simulation from the messages that it sent.

    Args:
        formula: the closed formula of the same time.
        expected_s: what that formula gives, where all ranks are equally far from each other.
        times: what the busiest links carry, if not the busiest of each step, one step after the other.

    Raises:
        AssertionError: the messages take another time than the formula gives.
    """
    times = critical_time(steps, settings) if times is None else times
    seconds = _seconds(times, settings)
    if expected_s is not None and abs(expected_s - seconds) > 1e-9 * expected_s:
        raise AssertionError(f"{formula}: the messages take {seconds} s, the formula gives {expected_s} s")
    used = (settings.link, settings.between) if settings.node_size else (settings.link,)
    sent, received = volumes(settings.ranks, [message for step in steps for message in step.messages])
    return Cost(
        size_bytes=settings.size_bytes,
        counted=counted,
        sent_bytes=sent,
        received_bytes=received,
        messages=times[0].messages + times[1].messages,
        formula=formula,
        numbers=_time_formula(times, settings),
        seconds=seconds,
        links=tuple(map(_described, dict.fromkeys(used))),
        figures=figures or {},
        sentences=(*sentences, *_rounding(formula, settings)),
    )


def _described(link: Link) -> str:
    """Return a link with its latency and bandwidth."""
    speed = f"alpha = {duration(link.alpha_s * 1e9)}, 1/beta = {link.bytes_per_s / 1e9:,.4g} GB/s"
    return f"{link.name}: {speed}" if link.name else speed


def _rounding(formula: str, settings: Settings) -> list[str]:
    uneven = settings.ranks & (settings.ranks - 1) and "log2(P)" in formula
    return [f"log2({settings.ranks}) is rounded up to {(settings.ranks - 1).bit_length()}."] if uneven else []


def _time_formula(times: tuple[Time, Time], settings: Settings) -> str:
    """Write a time with its numbers.

    For example ``6 × 3.00 µs + 1.5 × 208 MB / 450 GB/s = 18.0 µs + 693 µs = 711 µs``.
    """
    terms, results = [], []
    for time, link in zip(times, (settings.link, settings.between), strict=True):
        if not time.messages:
            continue
        share = time.size / settings.size_bytes
        terms += [f"{time.messages} × {duration(link.alpha_s * 1e9)}"]
        terms += [f"{share:.4g} × {megabytes(settings.size_bytes)} / {link.bytes_per_s / 1e9:,.4g} GB/s"]
        results += [time.messages * link.alpha_s, time.size / link.bytes_per_s]
    parts = " + ".join(duration(result * 1e9) for result in results)
    return f"{' + '.join(terms)} = {parts} = {duration(sum(results) * 1e9)}"


# An explanation as plain values, for JSON and for pages.


SCHEMA = 1


def to_dict(explanation: Explanation, step: int | None = None) -> dict[str, Any]:
    """Return an explanation with every step and message.

    Args:
        step: the number of the only step to keep.
    """
    content = msgspec.to_builtins(explanation)
    if step is not None:
        content["steps"] = [content["steps"][step - 1]]
    return {"schema": SCHEMA, **content}
