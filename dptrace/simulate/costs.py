"""The volume and the time of what a simulation sent, by the alpha-beta model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from dptrace.core.units import duration
from dptrace.simulate.explanation import Cost, Message, Step
from dptrace.simulate.settings import Settings

__all__ = ["Time", "cost_of", "critical_time", "megabytes", "time_formula", "volumes"]


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
) -> Cost:
    """Return the cost of a simulation from the messages that it sent.

    Args:
        formula: the closed formula of the same time.
        expected_s: what that formula gives, where all ranks are equally far from each other.

    Raises:
        AssertionError: the messages take another time than the formula gives.
    """
    times = critical_time(steps, settings)
    seconds = _seconds(times, settings)
    if expected_s is not None and abs(expected_s - seconds) > 1e-9 * expected_s:
        raise AssertionError(f"{formula}: the messages take {seconds} s, the formula gives {expected_s} s")
    sent, received = volumes(settings.ranks, [message for step in steps for message in step.messages])
    return Cost(
        size_bytes=settings.size_bytes,
        counted=counted,
        sent_bytes=sent,
        received_bytes=received,
        messages=times[0].messages + times[1].messages,
        formula=formula,
        numbers=time_formula(times, settings),
        seconds=seconds,
        links=tuple(str(link) for link in dict.fromkeys((settings.link, settings.between))),
        figures=figures or {},
        sentences=(*sentences, *_rounding(formula, settings)),
    )


def _rounding(formula: str, settings: Settings) -> list[str]:
    uneven = settings.ranks & (settings.ranks - 1) and "log2(P)" in formula
    return [f"log2({settings.ranks}) is rounded up to {(settings.ranks - 1).bit_length()}."] if uneven else []


def time_formula(times: tuple[Time, Time], settings: Settings) -> str:
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
