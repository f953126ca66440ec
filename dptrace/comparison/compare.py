"""Compare two runs: each figure of a step in both, whether it changed beyond noise, and what caused the change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from os import PathLike
from typing import TYPE_CHECKING, Any

from dptrace.comparison.changes import (
    COLLECTIVE_COLUMNS,
    KERNEL_COLUMNS,
    Change,
    CollectiveChange,
    KernelChange,
    KindChanges,
    collective_changes,
    figure_changes,
    kernel_changes,
    kind_changes,
    mfu_change,
    overlap_change,
    wait_and_transfer,
    without_claim,
)
from dptrace.comparison.sides import DeviceId, RunSample, Sides, devices_by_id, differences, make_sides
from dptrace.comparison.significance import MIN_STEPS
from dptrace.comparison.summary import FIGURE_NAMES, ThresholdResult, notes_on, parse, summarize
from dptrace.core.units import milliseconds, plural, signed_milliseconds
from dptrace.errors import UsageError
from dptrace.run.run import Run

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FIGURE_NAMES", "SCHEMA", "Comparison", "compare"]

SCHEMA = 1
"""Version of the JSON that :meth:`Comparison.to_dict` returns: the meaning of a name in it never changes."""


@dataclass(frozen=True, repr=False)
class Comparison:
    """The result of :func:`dptrace.compare`: the changes from A to B; a negative difference is a gain in speed."""

    a: RunSample
    """The recording that stands for A in pictures: the only one, or the one with the median wall time."""
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
    before: tuple[RunSample, ...] = ()
    """The recordings of A."""
    after: tuple[RunSample, ...] = ()
    """The recordings of B."""
    kinds: tuple[KindChanges, ...] = ()
    """The changes of each kind of step; empty where all steps are of one kind."""
    wait_and_transfer: tuple[Change, ...] = ()
    """Exposed waiting, and transfer and wait of the matched collectives of a step, as far as both sides show them."""
    mfu: Change | None = None
    """Model FLOPs utilization, in percent; None where a run's FLOPs or its GPU's peak are not known."""
    unlike: str = ""
    """Why no step of A is comparable to one of B; empty where some are."""

    def change(self, name: str) -> Change:
        """Return the change of a figure by its name, such as ``wall_ns``.

        Raises:
            KeyError: there is no such figure, or it is unknown in these runs.
        """
        for change in (*self.changes, *self.wait_and_transfer):
            if change.name == name:
                return change
        raise KeyError(name)

    def check(self, limit: str, fail_within_noise: bool = False) -> ThresholdResult:
        """Check a limit such as ``exposed_comm > +5%``, as ``dptrace diff --fail-if`` does.

        Args:
            limit: in the grammar of ``--fail-if``.
            fail_within_noise: let a limit on a change fail also where the change may be noise.

        Raises:
            UsageError: *limit* is not a limit; the message has the grammar.
        """
        return parse(limit).check(self, fail_within_noise)

    @property
    def several(self) -> bool:
        """Whether a side has several recordings, so that noise is that between recordings."""
        return len(self.before) + len(self.after) > 2

    @property
    def too_few_steps(self) -> str | None:
        """The number of steps where it is too small to separate a difference from noise; otherwise None."""
        steps_a, steps_b = (sum(len(sample.steps) for sample in side) for side in (self.before, self.after))
        if min(steps_a, steps_b) >= MIN_STEPS:
            return None
        where = "side" if self.several else "run"
        return f"{plural(steps_a, 'step')} per {where}" if steps_a == steps_b else f"{steps_a} and {steps_b} steps"

    def summary(self) -> str:
        """Return the result in one sentence."""
        return summarize(self)

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
            p (float or None): rate at which noise alone differs as much, corrected for the number of figures.
            verdict (str): ``same``, ``within noise``, ``beyond noise`` or ``cannot tell``.
            low_ns, high_ns (int or None, ns): 95 % interval of delta_ns; missing with too few steps.
            detectable_ns (int or None, ns): change that would be found in 80 % of such comparisons.
        """
        import pandas as pd

        return pd.DataFrame(self._figure_rows())

    def ranks(self) -> pd.DataFrame:
        """Return the figures of each GPU in both runs: a row per GPU and figure.

        Columns:
            rank, gpu (int): rank number, and index among the rank's GPUs.
            figure … detectable_ns: as in :meth:`figures`.
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
            a_transfer_ns, b_transfer_ns, delta_transfer_ns (int or None, ns): shortest duration among the ranks;
                missing where a rank of the group was not recorded.
            a_wait_ns, b_wait_ns, delta_wait_ns (int or None, ns): duration minus transfer; missing as transfer.
            exposed_verdict, overlapped_verdict, duration_verdict (str): as in :meth:`figures`.
            transfer_verdict, wait_verdict (str or None): as in :meth:`figures`; missing as transfer.
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
            a_ns … detectable_ns: as in :meth:`figures`.
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
            "before": [_sample_dict(sample) for sample in self.before],
            "after": [_sample_dict(sample) for sample in self.after],
            "differs": list(self.differences),
            "figures": self._figure_rows(),
            "overlap": None if self.overlap is None else self.overlap.to_dict("percent"),
            "mfu": None if self.mfu is None else self.mfu.to_dict("percent"),
            "wait_and_transfer": [{"figure": change.name, **change.to_dict()} for change in self.wait_and_transfer],
            "kinds": [kind.to_dict() for kind in self.kinds],
            "ranks": self._rank_rows(),
            "collectives": [row.to_dict() for row in self.collective_changes],
            "kernels": [row.to_dict() for row in self.kernel_changes],
            "notes": list(self.notes),
        }


def compare(
    a: Run | Sequence[Run], b: Run | Sequence[Run], every_step: bool = False, with_kernels: bool = True
) -> Comparison:
    """Compare the steps of B with those of A, each one recording or several.

    For equal world sizes, the ranks in all recordings are compared; otherwise all ranks of each side, as means per
    rank.

    Args:
        every_step: keep outlier steps.
        with_kernels: compare kernels, which takes longest.

    Raises:
        UsageError: a side is a path, has no recording, or one recording is on both sides with others.
    """
    before, after = _recordings(a), _recordings(b)
    _check(before, after)
    sides = make_sides(before, after, every_step)
    changes = figure_changes(sides)
    kinds = kind_changes(sides)
    alike = not any(change.beyond for change in (*changes, *(c for kind in kinds for c in kind.changes)))
    rows = collective_changes(sides, alike)
    without_kernels = any(run.figures_only for run in (*before, *after))
    unmatched = any(row.transfer is None for row in rows)
    waits = wait_and_transfer(sides, rows)
    identical = not any(change.delta for change in (*changes, *waits))
    first, last = sides.a.shown, sides.b.shown
    return Comparison(
        a=first,
        b=last,
        changes=changes,
        overlap=overlap_change(sides, alike),
        by_rank=_by_rank(sides, alike),
        collective_changes=rows,
        kernel_changes=kernel_changes(sides, alike) if with_kernels and not without_kernels else (),
        differences=tuple(_differences(sides, before, after)),
        notes=tuple(notes_on(sides, without_kernels, unmatched, identical)),
        before=sides.a.samples,
        after=sides.b.samples,
        kinds=kinds,
        wait_and_transfer=waits,
        mfu=mfu_change(sides, next(change for change in changes if change.name == "wall_ns")),
        unlike=sides.kinds.unlike,
    )


def _recordings(side: Run | Sequence[Run]) -> tuple[Run, ...]:
    runs = (side,) if isinstance(side, Run | str | PathLike) else tuple(side)
    if any(isinstance(run, str | PathLike) for run in runs):
        raise UsageError("A comparison takes runs: open each path with dptrace.open(path) first.")
    return runs


def _check(before: Sequence[Run], after: Sequence[Run]) -> None:
    if not before or not after:
        raise UsageError("A comparison needs at least one recording before and one after.")
    if len(before) + len(after) > 2:
        for side in (before, after):
            if len({id(run) for run in side}) < len(side):
                raise UsageError("The same recording is given twice on a side; a copy adds no evidence.")
        if {id(run) for run in before} & {id(run) for run in after}:
            raise UsageError("A recording is on both sides: leave it out of one.")


def _by_rank(sides: Sides, alike: bool) -> tuple[tuple[DeviceId, tuple[Change, ...]], ...]:
    """Compare each GPU; none is called different by chance where no figure of all of them differs."""
    rows = []
    for device_id in sides.shared:
        gpus = sides.a.samples[0].index(device_id), sides.b.samples[0].index(device_id)
        changes = figure_changes(sides, gpus)
        rows.append((device_id, tuple(map(without_claim, changes)) if alike else changes))
    return tuple(rows)


def _differences(sides: Sides, before: Sequence[Run], after: Sequence[Run]) -> list[str]:
    """List how the recordings differ: B's first from A's first, and, within a side, the others from the first."""
    within: list[str] = []
    firsts = []
    for letter, side in (("A", before), ("B", after)):
        found: list[str] = []
        for number, run in enumerate(side[1:], 2):
            texts = differences(side[0], run, tuple(devices_by_id(run)), (f"{letter}1", f"{letter}{number}"))
            found += [f"Within {letter}: {text}" for text in texts]
        # What the first recording shows is that of the side only where the others agree.
        firsts.append(f"{letter}1" if found else letter)
        within += found
    compared = sides.shared if sides.matching else None
    return [*differences(before[0], after[0], compared, (firsts[0], firsts[1])), *within]


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
