"""Two runs compared: what each figure of a step was and is, whether that is more than noise, and what moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from dptrace.comparison.changes import (
    COLLECTIVE_COLUMNS,
    KERNEL_COLUMNS,
    PARTS,
    Change,
    CollectiveChange,
    KernelChange,
    collective_changes,
    figure_changes,
    kernel_changes,
    overlap_change,
)
from dptrace.comparison.differences import differences
from dptrace.comparison.samples import DeviceId, RunSample, devices_by_id, sample_run
from dptrace.comparison.significance import has_enough_steps
from dptrace.core import units
from dptrace.run.run import Run

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FIGURE_NAMES", "SCHEMA", "Comparison", "compare", "milliseconds"]

SCHEMA = 1
"""Version of the JSON that :meth:`Comparison.to_dict` gives: names in it never change meaning."""

FIGURE_NAMES = {
    "forward_ns": "forward",
    "backward_ns": "backward",
    "optimizer_ns": "optimizer",
    "other_ns": "other compute",
    "exposed_comm_ns": "exposed communication",
    "overlapped_comm_ns": "overlapped communication",
    "exposed_memory_ns": "exposed memory",
    "idle_ns": "idle",
    "wall_ns": "wall",
    "data_loading_ns": "data loading",
    "host_bound_ns": "host-bound",
    "launch_latency_ns": "launch latency",
    "waiting_ns": "waiting",
    "bubble_ns": "pipeline bubble",
}

_RESOLUTION_NS, _RESOLUTION_SHARE = 1_000, 0.001
"""What a profiler's clock and its own cost let two recordings tell apart: 1 µs, and a thousandth of a step."""
_MAX_LISTED = 3
"""Parts that the sentence names."""


@dataclass(frozen=True, repr=False)
class Comparison:
    """What :func:`compare` found; B's figures minus A's, so that less than nothing is faster."""

    a: RunSample
    b: RunSample
    changes: tuple[Change, ...]
    """The nine figures and the causes of idling."""
    overlap: Change | None
    """Of overlap, in percent; nothing where a run has no communication."""
    by_rank: tuple[tuple[DeviceId, tuple[Change, ...]], ...]
    """The same as changes, for each GPU that both have."""
    collective_changes: tuple[CollectiveChange, ...]
    kernel_changes: tuple[KernelChange, ...]
    differences: tuple[str, ...]
    """What was different about the two recordings, a sentence each."""
    notes: tuple[str, ...]
    """What the figures do not show, and what else must be known to believe them."""

    def change(self, name: str) -> Change:
        """Give a figure's row by its name, ``wall_ns``."""
        return next(change for change in self.changes if change.name == name)

    @property
    def too_few_steps(self) -> str | None:
        """Say why no difference can be told from noise; nothing where it can."""
        count = len(self.a.steps), len(self.b.steps)
        if has_enough_steps(*count):
            return None
        if count[0] == count[1]:
            return f"{count[0]} step{'s' if count[0] > 1 else ''} a run"
        return f"{count[0]} and {count[1]} steps"

    def summary(self) -> str:
        """Say in a sentence what came out."""
        wall = self.change("wall_ns")
        named = sorted((c for c in self.changes if c.beyond and c.name in PARTS), key=lambda c: -abs(c.delta))
        beside = [c for c in self.changes if c.beyond and c.name == "overlapped_comm_ns"]
        if not any(change.delta for change in self.changes):
            return "No difference beyond noise: every figure is the same to the nanosecond."
        if wall.beyond:
            return f"B is {_faster(wall)} a step{_list(named[:_MAX_LISTED])}."
        if named or beside:
            moved = _list([*named, *beside][:_MAX_LISTED])
            return f"A step's length shows no difference beyond noise ({_signed(wall.delta)}), its parts do{moved}."
        untold = [c for c in self.changes if c.verdict == "cannot tell" and c.name in (*PARTS, "wall_ns")]
        if not untold:
            return f"No difference beyond noise (B's step: {_signed(wall.delta)})."
        parts = sorted((c for c in untold if c.name in PARTS), key=lambda c: -abs(c.delta))
        return f"Cannot tell, with {self.too_few_steps}: B was {_faster(wall)} a step{_list(parts[:_MAX_LISTED])}."

    def __repr__(self) -> str:
        return f"<dptrace.Comparison: {self.summary()}>"

    def _repr_html_(self) -> str:
        """Return a small table for notebooks: the sentence and the nine figures."""
        head = "".join(f"<th>{name}</th>" for name in ("ms per step", "A", "B", "B − A", "verdict"))
        rows = "".join(
            f"<tr><th>{FIGURE_NAMES[change.name]}</th><td>{units.milliseconds(change.a)}</td>"
            f"<td>{units.milliseconds(change.b)}</td><td>{units.signed_milliseconds(change.delta)}</td>"
            f"<td>{escape(change.verdict)}</td></tr>"
            for change in self.changes
        )
        return f"<p>{escape(self.summary())}</p><table><tr>{head}</tr>{rows}</table>"

    def figures(self) -> pd.DataFrame:
        """Give a row for each figure: A, B, difference, medians, spreads over steps and over ranks, and verdict."""
        import pandas as pd

        return pd.DataFrame(self._figure_rows())

    def ranks(self) -> pd.DataFrame:
        """Give the same for each GPU that both runs have."""
        import pandas as pd

        return pd.DataFrame(self._rank_rows(), columns=["rank", "gpu", *self._figure_rows()[0]])

    def collectives(self) -> pd.DataFrame:
        """Give a row for each kind, group and size of collective, those whose exposed time moved most first."""
        import pandas as pd

        return pd.DataFrame([row.to_dict() for row in self.collective_changes], columns=list(COLLECTIVE_COLUMNS))

    def kernels(self) -> pd.DataFrame:
        """Give a row for each kernel by its name, those that moved most first."""
        import pandas as pd

        return pd.DataFrame([row.to_dict() for row in self.kernel_changes], columns=list(KERNEL_COLUMNS))

    def _figure_rows(self) -> list[dict[str, Any]]:
        return [{"figure": change.name, **change.to_dict()} for change in self.changes]

    def _rank_rows(self) -> list[dict[str, Any]]:
        return [
            {"rank": rank, "gpu": gpu, "figure": change.name, **change.to_dict()}
            for (rank, gpu), changes in self.by_rank
            for change in changes
        ]

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain data, the way ``dptrace diff --json`` prints it."""
        return {
            "schema": SCHEMA,
            "summary": self.summary(),
            "a": _side_dict(self.a),
            "b": _side_dict(self.b),
            "differs": list(self.differences),
            "figures": self._figure_rows(),
            "overlap": None if self.overlap is None else self.overlap.to_dict("percent"),
            "ranks": self._rank_rows(),
            "collectives": [row.to_dict() for row in self.collective_changes],
            "kernels": [row.to_dict() for row in self.kernel_changes],
            "notes": list(self.notes),
        }


def compare(a: Run, b: Run, every_step: bool = False) -> Comparison:
    """Compare two runs, step against step as each has them: B against A.

    Where both are of one job's size, the ranks that both have are compared; else all of each, per rank.

    Args:
        every_step: keep steps that are unlike the others.
    """
    places_a, places_b = devices_by_id(a), devices_by_id(b)
    both = [place for place in places_a if place in places_b]
    matching = a.world_size == b.world_size and bool(both)
    one, two = (
        sample_run(a, both if matching else places_a, every_step),
        sample_run(b, both if matching else places_b, every_step),
    )
    # The longer of the two, so that A against B says what B against A says.
    wall = max(float(s.figures["wall_ns"].mean()) for s in (one, two))
    floor = max(_RESOLUTION_NS, _RESOLUTION_SHARE * wall)
    by_rank = tuple(
        (place, figure_changes(one, two, floor, (one.device_ids.index(place), two.device_ids.index(place))))
        for place in both
    )
    changes = figure_changes(one, two, floor)
    alike = not any(change.beyond for change in changes)
    blind = a.figures_only or b.figures_only
    return Comparison(
        a=one,
        b=two,
        changes=changes,
        overlap=overlap_change(one, two),
        by_rank=by_rank,
        collective_changes=collective_changes(one, two, floor, alike),
        kernel_changes=() if blind else kernel_changes(one, two, floor, alike),
        differences=tuple(differences(a, b, both if matching else None)),
        notes=tuple(_notes(one, two, blind)),
    )


def milliseconds(ns: float) -> str:
    """Give ms with as many decimals as tell something.

    >>> milliseconds(14_100_000), milliseconds(250_300_000), milliseconds(-4_200)
    ('14.1', '250', '-0.0042')
    """
    value = ns / 1e6
    size = abs(value)
    return f"{value:,.0f}" if size >= 100 else f"{value:.1f}" if size >= 1 else f"{value:.2g}"


def _signed(delta: float) -> str:
    return f"{'+' if delta >= 0 else '−'}{milliseconds(abs(delta))} ms"


def _faster(wall: Change) -> str:
    if abs(wall.delta) < 1000:
        return "neither faster nor slower"
    percent = wall.delta_percent
    share = "" if percent is None else f" ({abs(percent):.1f} %)"
    return f"{milliseconds(abs(wall.delta))} ms{share} {'slower' if wall.delta > 0 else 'faster'}"


def _list(changes: Sequence[Change]) -> str:
    if not changes:
        return ""
    return ": " + ", ".join(f"{FIGURE_NAMES[change.name]} {_signed(change.delta)}" for change in changes)


def _side_dict(one: RunSample) -> dict[str, Any]:
    run = one.run
    return {
        "run": run.path,
        "world_size": run.world_size,
        "ranks": [rank for rank, _ in one.device_ids],
        "device": one.devices[0].timeline.device_name,
        **{key: run.metadata.get(key) for key in ("mode", "model")},
        "steps": list(one.steps),
        "left_out": [{"step": name, "wall_ns": wall} for name, wall in one.left_out],
        "notes": list(run.notes),
    }


def _notes(a: RunSample, b: RunSample, blind: bool) -> list[str]:
    notes = []
    for letter, one in (("A", a), ("B", b)):
        notes += [f"{letter}: {note}" for note in one.notes]
        if one.left_out:
            usual = milliseconds(float(one.figures["wall_ns"].mean()))
            listed = ", ".join(f"{name} ({milliseconds(wall)} ms)" for name, wall in one.left_out[:4])
            more = f" and {len(one.left_out) - 4} more" if len(one.left_out) > 4 else ""
            notes.append(f"{letter}: left out, unlike the other steps of {usual} ms: {listed}{more}.")
    if blind:
        notes.append("Kernels are not compared: a run was opened for its figures only.")
    notes.append("Noise is told from the steps of one run each; what differs between two starts may be more.")
    return notes
