"""Compare two runs: each figure of a step in both, whether it changed beyond noise, and what caused the change."""

from __future__ import annotations

import warnings
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
from dptrace.core.units import duration, milliseconds, plural, signed_duration, signed_milliseconds
from dptrace.run.run import Run

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FIGURE_NAMES", "SCHEMA", "Comparison", "compare"]

SCHEMA = 1
"""Version of the JSON that :meth:`Comparison.to_dict` returns: the meaning of a name in it never changes."""

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
    "allocator_ns": "allocator",
    "synchronizing_ns": "synchronizing",
    "host_bound_ns": "host-bound",
    "launch_latency_ns": "launch latency",
    "waiting_ns": "waiting",
    "bubble_ns": "pipeline bubble",
}

_RESOLUTION_NS, _RESOLUTION_SHARE = 1_000, 0.001
"""Differences below 1 µs, or below a thousandth of a step, are within the resolution of a profiler."""
_MAX_LISTED, _MAX_LISTED_STEPS = 3, 4
"""Parts that the summary names; left-out steps that a note names."""


@dataclass(frozen=True, repr=False)
class Comparison:
    """The result of :func:`dptrace.compare`: the changes from A to B; a negative difference is a gain in speed."""

    a: RunSample
    b: RunSample
    changes: tuple[Change, ...]
    """The nine figures and the causes of idle time."""
    overlap: Change | None
    """The overlap, in percent; None where a run has no communication."""
    by_rank: tuple[tuple[DeviceId, tuple[Change, ...]], ...]
    """The same as ``changes``, for each GPU in both runs."""
    collective_changes: tuple[CollectiveChange, ...]
    kernel_changes: tuple[KernelChange, ...]
    differences: tuple[str, ...]
    """How the two recordings differ in setup, a sentence each."""
    notes: tuple[str, ...]
    """What limits the figures, a sentence each."""

    def change(self, name: str) -> Change:
        """Return the change of a figure by its name, such as ``wall_ns``."""
        return next(change for change in self.changes if change.name == name)

    @property
    def too_few_steps(self) -> str | None:
        """The number of steps where it is too small to separate a difference from noise; otherwise None."""
        steps_a, steps_b = len(self.a.steps), len(self.b.steps)
        if has_enough_steps(steps_a, steps_b):
            return None
        return f"{plural(steps_a, 'step')} per run" if steps_a == steps_b else f"{steps_a} and {steps_b} steps"

    def summary(self) -> str:
        """Return the result in one sentence."""
        wall = self.change("wall_ns")
        parts = sorted((c for c in self.changes if c.beyond and c.name in PARTS), key=lambda c: -abs(c.delta))
        overlapped = [c for c in self.changes if c.beyond and c.name == "overlapped_comm_ns"]
        if not any(change.delta for change in self.changes):
            return "No difference beyond noise: every figure is the same to the nanosecond."
        if wall.beyond:
            return f"B is {_faster(wall)} per step{_list(parts)}."
        if parts or overlapped:
            delta = signed_duration(wall.delta)
            moved = _list([*parts, *overlapped])
            return f"The step time shows no difference beyond noise ({delta}), but its parts do{moved}."
        unclear = [c for c in self.changes if c.verdict == "cannot tell" and c.name in (*PARTS, "wall_ns")]
        if not unclear:
            return f"No difference beyond noise (B's step: {signed_duration(wall.delta)})."
        parts = sorted((c for c in unclear if c.name in PARTS), key=lambda c: -abs(c.delta))
        return f"Cannot tell, with {self.too_few_steps}: B was {_faster(wall)} per step{_list(parts)}."

    def __repr__(self) -> str:
        return f"<dptrace.Comparison: {self.summary()}>"

    def _repr_html_(self) -> str:
        """Return a small table for notebooks: the summary and the nine figures."""
        head = "".join(f"<th>{name}</th>" for name in ("ms per step", "A", "B", "B − A", "verdict"))
        rows = "".join(
            f"<tr><th>{FIGURE_NAMES[change.name]}</th><td>{milliseconds(change.a)}</td>"
            f"<td>{milliseconds(change.b)}</td><td>{signed_milliseconds(change.delta)}</td>"
            f"<td>{escape(change.verdict)}</td></tr>"
            for change in self.changes
        )
        return f"<p>{escape(self.summary())}</p><table><tr>{head}</tr>{rows}</table>"

    def figures(self) -> pd.DataFrame:
        """Return the figures of a step in both runs: a row per figure and idle cause.

        Columns:
            figure (str): ``wall_ns``, ``forward_ns`` …
            a_ns, b_ns, delta_ns (int, ns): mean over steps and ranks in A and in B, and B minus A.
            a_median_ns, b_median_ns (int, ns): medians over steps and ranks.
            a_step_spread_ns, b_step_spread_ns (int or None, ns): standard deviation of the steps; missing for one step.
            a_rank_spread_ns, b_rank_spread_ns (int or None, ns): the same of the ranks; missing for one rank.
            delta_percent (float or None, %): delta_ns in percent of a_ns; missing where a_ns is 0.
            p (float or None): how often swapped steps differ as much; missing with too few steps.
            verdict (str): ``same``, ``within noise``, ``beyond noise`` or ``cannot tell``.
        """
        import pandas as pd

        return pd.DataFrame(self._figure_rows())

    def ranks(self) -> pd.DataFrame:
        """Return the figures of each GPU in both runs: a row per GPU and figure.

        Columns:
            rank, gpu (int): rank number, and index among the rank's GPUs.
            figure … verdict: as in :meth:`figures`.
        """
        import pandas as pd

        return pd.DataFrame(self._rank_rows(), columns=["rank", "gpu", *self._figure_rows()[0]])

    def collectives(self) -> pd.DataFrame:
        """Return the collectives of a step, largest change of exposed time first: a row per kind, group and size.

        Columns:
            kind, group (str): kind of collective, and process group; the group is empty if the runs do not share it.
            group_size (int): number of ranks in the group; 0 where unknown.
            bytes (int or None, bytes): message size; <NA> where unknown.
            dtype (str): data type.
            a_bytes_per_step, b_bytes_per_step (float or None, bytes): bytes times count; missing where unknown.
            a_exposed_ns, b_exposed_ns, delta_exposed_ns (int, ns): time without compute, and B minus A.
            a_overlapped_ns, b_overlapped_ns, delta_overlapped_ns (int, ns): time under compute.
            a_duration_ns, b_duration_ns, delta_duration_ns (int, ns): whole time.
            exposed_verdict, overlapped_verdict, duration_verdict (str): as in :meth:`figures`.
            a_count, b_count (float): calls per step.
            only_in (str or None): ``A`` or ``B`` where only one run has it.
        """
        import pandas as pd

        rows = [row.to_dict() for row in self.collective_changes]
        return pd.DataFrame(rows, columns=list(COLLECTIVE_COLUMNS)).astype({"bytes": "Int64"})

    def kernels(self) -> pd.DataFrame:
        """Return the kernels, copies and sets of a step, largest change first: a row per name.

        Columns:
            name, kind (str): name, and ``compute`` or ``memory``.
            a_ns … verdict: as in :meth:`figures`.
            a_count, b_count (float): calls per step.
            only_in (str or None): ``A`` or ``B`` where only one run has it.
        """
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
        """Return everything as plain data, as ``dptrace diff --json`` prints it."""
        return {
            "schema": SCHEMA,
            "summary": self.summary(),
            "a": _sample_dict(self.a),
            "b": _sample_dict(self.b),
            "differs": list(self.differences),
            "figures": self._figure_rows(),
            "overlap": None if self.overlap is None else self.overlap.to_dict("percent"),
            "ranks": self._rank_rows(),
            "collectives": [row.to_dict() for row in self.collective_changes],
            "kernels": [row.to_dict() for row in self.kernel_changes],
            "notes": list(self.notes),
        }

    # Names of version 0.1, kept for one release.

    @property
    def differs(self) -> tuple[str, ...]:
        """:attr:`differences`; deprecated."""
        _warn("differs", "differences")
        return self.differences

    @property
    def few(self) -> str | None:
        """:attr:`too_few_steps`; deprecated."""
        _warn("few", "too_few_steps")
        return self.too_few_steps


def _warn(old: str, new: str) -> None:
    message = f"Comparison.{old} is now Comparison.{new}; the old name will be removed in the next release."
    warnings.warn(message, DeprecationWarning, stacklevel=3)


def compare(a: Run, b: Run, every_step: bool = False) -> Comparison:
    """Compare the steps of run B with those of run A.

    For equal world sizes, the ranks in both runs are compared; otherwise all ranks of each, as means per rank.

    Args:
        every_step: keep outlier steps.
    """
    ids_a, ids_b = devices_by_id(a), devices_by_id(b)
    shared = [device_id for device_id in ids_a if device_id in ids_b]
    matching = a.world_size == b.world_size and bool(shared)
    sample_a = sample_run(a, shared if matching else ids_a, every_step)
    sample_b = sample_run(b, shared if matching else ids_b, every_step)
    # The longer of the two, so that the verdicts do not depend on the order of A and B.
    wall = max(float(sample.figures["wall_ns"].mean()) for sample in (sample_a, sample_b))
    floor = max(_RESOLUTION_NS, _RESOLUTION_SHARE * wall)
    by_rank = tuple(
        (device_id, figure_changes(sample_a, sample_b, floor, (sample_a.index(device_id), sample_b.index(device_id))))
        for device_id in shared
    )
    changes = figure_changes(sample_a, sample_b, floor)
    alike = not any(change.beyond for change in changes)
    without_kernels = a.figures_only or b.figures_only
    return Comparison(
        a=sample_a,
        b=sample_b,
        changes=changes,
        overlap=overlap_change(sample_a, sample_b),
        by_rank=by_rank,
        collective_changes=collective_changes(sample_a, sample_b, floor, alike),
        kernel_changes=() if without_kernels else kernel_changes(sample_a, sample_b, floor, alike),
        differences=tuple(differences(a, b, shared if matching else None)),
        notes=tuple(_notes(sample_a, sample_b, without_kernels)),
    )


def _faster(wall: Change) -> str:
    if abs(wall.delta) < _RESOLUTION_NS:
        return "neither faster nor slower"
    percent = wall.delta_percent
    share = "" if percent is None else f" ({abs(percent):.1f} %)"
    return f"{duration(abs(wall.delta))}{share} {'slower' if wall.delta > 0 else 'faster'}"


def _list(changes: Sequence[Change]) -> str:
    listed = ", ".join(f"{FIGURE_NAMES[c.name]} {signed_duration(c.delta)}" for c in changes[:_MAX_LISTED])
    return f": {listed}" if listed else ""


def _sample_dict(sample: RunSample) -> dict[str, Any]:
    run = sample.run
    return {
        "run": run.path,
        "world_size": run.world_size,
        "ranks": [rank for rank, _ in sample.device_ids],
        "device": sample.devices[0].timeline.device_name,
        **{key: run.metadata.get(key) for key in ("mode", "model")},
        "steps": list(sample.steps),
        "left_out": [{"step": name, "wall_ns": wall} for name, wall in sample.left_out],
        "notes": list(run.notes),
    }


def _notes(a: RunSample, b: RunSample, without_kernels: bool) -> list[str]:
    notes = []
    for letter, sample in (("A", a), ("B", b)):
        notes += [f"{letter}: {note}" for note in sample.notes]
        if sample.left_out:
            usual = duration(float(sample.figures["wall_ns"].mean()))
            listed = ", ".join(f"{name} ({duration(wall)})" for name, wall in sample.left_out[:_MAX_LISTED_STEPS])
            rest = len(sample.left_out) - _MAX_LISTED_STEPS
            more = f" and {rest} more" if rest > 0 else ""
            notes.append(f"{letter}: outlier steps left out (the other steps take {usual}): {listed}{more}.")
    if without_kernels:
        notes.append("Kernels are not compared: a run was opened with figures_only.")
    notes.append("Noise is estimated from the steps of one recording per run; two starts of a job may differ by more.")
    return notes
