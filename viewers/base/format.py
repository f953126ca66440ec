"""Names of ranks and steps, and what findings would gain, as every table and picture writes them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from dptrace.analysis.findings.finding import Gain
from dptrace.core.units import duration, sanitize
from dptrace.run.run import Run
from dptrace.timeline.model import Timeline

__all__ = ["gain_sentence", "plain", "rank_label", "shapes_text", "step_label"]


def plain(text: str) -> Text:
    """Return a text from a trace without markup and control characters that a terminal would obey."""
    return Text(sanitize(text))


def shapes_text(row: Mapping[str, Any]) -> str:
    """Return the shapes of an operator's inputs from its row in a table of kernels: ``[8,512] [512,64]``."""
    return " ".join(str(sizes).replace(" ", "") for sizes in row["input_dims"] if sizes)


def step_label(name: str) -> str:
    """Shorten the profiler's step names to their number; return other names unchanged."""
    return name.removeprefix("ProfilerStep#")


def gain_sentence(gain: Gain) -> str:
    """Return what a step would gain without a finding, with its range; or why that is not known.

    >>> gain_sentence(Gain("rank 2 level with the others", 978_800_000, 958_100_000, 996_100_000))
    'Would gain 978.8 ms a step (958.1 ms to 996.1 ms): rank 2 level with the others.'
    """
    if gain.ns is None:
        return f"Gain unknown: {gain.reason}"
    if gain.ns < 0:
        return f"Would lose {duration(-gain.ns)} a step: {gain.change}."
    low, high = (duration(ns) if ns else "0" for ns in (gain.low_ns, gain.high_ns))
    known = gain.high_ns is not None
    between, at_most = (f" ({low} to {high})", f" (at most {high} a step)") if known else ("", "")
    text = f"{duration(gain.ns)} a step{between}" if gain.ns else f"nothing{at_most}"
    if gain.next_ns and gain.next_ns > 2 * gain.ns:
        text = f"{duration(gain.next_ns)} a step with those above, alone {text}"
    return f"Would gain {text}: {gain.change}. {gain.reason}".rstrip()


def rank_label(run: Run, timeline: Timeline) -> str:
    """Return a GPU's rank, with its device index where the rank has several."""
    several = sum(other.rank == timeline.rank for other in run.timelines) > 1
    return f"{timeline.rank} GPU {timeline.device}" if several else str(timeline.rank)
