"""Compare two runs: each figure of a step in both, whether it changed beyond noise, and what caused the change."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeAlias

from dptrace.analysis.findings.evidence import Straggler
from dptrace.analysis.findings.finding import Finding
from dptrace.analysis.per_gpu.causes import CAUSES, DELAYS
from dptrace.comparison.changes import (
    COLLECTIVE_COLUMNS,
    FIGURE_NAMES,
    KERNEL_COLUMNS,
    PARTS,
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
    percent_of,
    wait_and_transfer,
    without_claim,
)
from dptrace.comparison.limits import ThresholdResult, parse, too_few
from dptrace.comparison.sides import (
    DeviceId,
    RunSample,
    Sides,
    StoredRun,
    copies,
    devices_by_id,
    differences,
    make_sides,
    refuse_copies,
)
from dptrace.comparison.significance import MIN_STEPS
from dptrace.core.notes import LENGTHS, RECORDS
from dptrace.core.table import columns, html_table, typed
from dptrace.core.units import MINUS, duration, milliseconds, plural, ranks_text, signed_duration, signed_milliseconds
from dptrace.errors import UsageError
from dptrace.run.cross_rank import figures_in_words
from dptrace.run.run import Run

if TYPE_CHECKING:
    import pandas as pd

SCHEMA = 1
"""Version of the JSON that :meth:`Comparison.to_dict` returns: the meaning of a name in it never changes."""
_MAX_LISTED, _MAX_LISTED_STEPS = 3, 4
"""Parts that the summary names; left-out steps that a note names."""
_OF_COLLECTIVES = ("exposed_wait_ns", "transfer_ns", "wait_ns")
_WAITING = 0.25
"""Share of what a step takes longer that the mean rank waits at least where late ranks are looked for."""
_MOSTLY = 0.8
"""Share of the change of exposed communication from which waiting is what changed."""
_LATE_SHARE = 0.5
"""Share of a change from which late ranks are named for it; other ranks hide the rest."""
_MIN_NS = 1_000
"""Change below which a step takes as long as before."""
_ONE_EACH = (
    "One recording per side can't separate a change of the code from one of the machine: two starts differ by "
    "more than their steps show. Record three of each, alternating, and compare them with --before and --after."
)


ByRank: TypeAlias = tuple[tuple[DeviceId, tuple[Change, ...]], ...]
_TYPED = (
    *columns("a_step_spread_ns b_step_spread_ns a_rank_spread_ns b_rank_spread_ns low_ns high_ns", "Int64", ""),
    *columns("detectable_ns bytes group_size a_transfer_ns b_transfer_ns delta_transfer_ns", "Int64", ""),
    *columns("a_wait_ns b_wait_ns delta_wait_ns", "Int64", ""),
    *columns("delta_percent p a_bytes_per_step b_bytes_per_step", "float", ""),
    *columns("figure name kind verdict exposed_verdict overlapped_verdict duration_verdict", "str", ""),
    *columns("transfer_verdict wait_verdict only_in group dtype", "string", ""),
    *columns("rank gpu a_ns b_ns delta_ns a_exposed_ns b_exposed_ns delta_exposed_ns", "int", ""),
    *columns("a_overlapped_ns b_overlapped_ns delta_overlapped_ns", "int", ""),
    *columns("a_duration_ns b_duration_ns delta_duration_ns", "int", ""),
    *columns("a_count b_count", "float", ""),
)
"""The types of the frames' columns, also where a frame has no row."""


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
    compare_gpus: Callable[[], ByRank] = field(default=tuple, compare=False)
    """Computes :attr:`by_rank`, which few ask for and which takes longest where the ranks are many."""

    @cached_property
    def by_rank(self) -> ByRank:
        """The same as ``changes``, for each GPU in both runs."""
        return self.compare_gpus()

    def change(self, name: str) -> Change:
        """Return the change of a figure by its name, such as ``wall_ns``.

        Raises:
            KeyError: there is no such figure, or it is unknown in these runs.
        """
        for change in (*self.changes, *self.wait_and_transfer):
            if change.name == name:
                return change
        raise KeyError(name)

    def check(self, limit: str, fail_within_noise: bool = False, fail_unchecked: bool = False) -> ThresholdResult:
        """Check a limit such as ``exposed_comm > +5%``, as ``dptrace diff --fail-if`` does.

        Args:
            limit: in the grammar of ``--fail-if``.
            fail_within_noise: let a limit on a change fail also where the change may be noise.
            fail_unchecked: let a limit fail also where the runs do not have its figure, or too much noise to decide it.

        Raises:
            UsageError: *limit* is not a limit; the message has the grammar.
        """
        return parse(limit).check(self, fail_within_noise, fail_unchecked)

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
        return _summarize(self)

    def __repr__(self) -> str:
        return f"<dptrace.Comparison: {self.summary()}>"

    def _repr_html_(self) -> str:
        """Return a small table for notebooks: the summary and the nine figures."""
        rows = [
            (
                FIGURE_NAMES[change.name],
                milliseconds(change.a),
                milliseconds(change.b),
                signed_milliseconds(change.delta),
                change.verdict,
            )
            for change in self.changes
        ]
        return html_table(self.summary(), ("ms per step", "A", "B", "B − A", "verdict"), rows)

    def figures(self) -> pd.DataFrame:
        """Return the figures of a step in both runs: a row per figure and idle cause.

        Columns:
            figure (str): ``wall_ns``, ``forward_ns`` …
            a_ns, b_ns, delta_ns (int, ns): mean over steps and ranks in A and in B, and B minus A.
            a_median_ns, b_median_ns (int, ns): medians over steps and ranks.
            a_step_spread_ns, b_step_spread_ns (Int64, ns): standard deviation of the steps; missing for one step.
            a_rank_spread_ns, b_rank_spread_ns (Int64, ns): the same of the ranks; missing for one rank.
            delta_percent (float, %): delta_ns in percent of a_ns; missing where a_ns is 0.
            p (float): rate at which noise alone differs as much, corrected for the number of figures.
            verdict (str): ``same``, ``within noise``, ``beyond noise`` or ``cannot tell``.
            low_ns, high_ns (Int64, ns): 95 % interval of delta_ns; missing with too few steps.
            detectable_ns (Int64, ns): change that would be found in 80 % of such comparisons.
        """
        import pandas as pd

        return typed(pd.DataFrame(self._figure_rows()), _TYPED)

    def ranks(self) -> pd.DataFrame:
        """Return the figures of each GPU in both runs: a row per GPU and figure.

        Columns:
            rank, gpu (int): rank number, and index among the rank's GPUs.
            figure … detectable_ns: as in :meth:`figures`.
        """
        import pandas as pd

        return typed(pd.DataFrame(self._rank_rows(), columns=["rank", "gpu", *self._figure_rows()[0]]), _TYPED)

    def collectives(self) -> pd.DataFrame:
        """Return the collectives of a step, largest change of exposed time first: a row per kind, group and size.

        Columns:
            kind (str): kind of collective.
            group (string): process group; missing if the runs do not share it.
            group_size (Int64): number of ranks in the group; missing where unknown.
            bytes (Int64, bytes): message size; missing where unknown.
            dtype (string): data type; missing where unknown.
            a_bytes_per_step, b_bytes_per_step (float, bytes): bytes times count; missing where unknown.
            a_exposed_ns, b_exposed_ns, delta_exposed_ns (int, ns): time without compute, and B minus A.
            a_overlapped_ns, b_overlapped_ns, delta_overlapped_ns (int, ns): time under compute.
            a_duration_ns, b_duration_ns, delta_duration_ns (int, ns): whole time.
            a_transfer_ns, b_transfer_ns, delta_transfer_ns (Int64, ns): shortest duration among the ranks;
                missing where a rank of the group was not recorded.
            a_wait_ns, b_wait_ns, delta_wait_ns (Int64, ns): duration minus transfer; missing as transfer.
            exposed_verdict, overlapped_verdict, duration_verdict (str): as in :meth:`figures`.
            transfer_verdict, wait_verdict (string): as in :meth:`figures`; missing as transfer.
            a_count, b_count (float): calls per step.
            only_in (string): ``A`` or ``B`` where only one run has it.
        """
        import pandas as pd

        rows = [row.to_dict() for row in self.collective_changes]
        return typed(pd.DataFrame(rows, columns=list(COLLECTIVE_COLUMNS)), _TYPED)

    def kernels(self) -> pd.DataFrame:
        """Return the kernels, copies and sets of a step, largest change first: a row per name.

        Columns:
            name, kind (str): name, and ``compute`` or ``memory``.
            a_ns … detectable_ns: as in :meth:`figures`.
            a_count, b_count (float): calls per step.
            only_in (string): ``A`` or ``B`` where only one run has it.
        """
        import pandas as pd

        rows = [row.to_dict() for row in self.kernel_changes]
        return typed(pd.DataFrame(rows, columns=list(KERNEL_COLUMNS)), _TYPED)

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
    """Compare the steps of B with those of A; see :func:`dptrace.compare`.

    For equal world sizes, the ranks in all recordings are compared; otherwise all ranks of each side, as means per
    rank.

    Args:
        every_step: keep outlier steps.
        with_kernels: compare kernels, which takes longest.
    """
    before, after = ((side,) if isinstance(side, Run) else tuple(side) for side in (a, b))
    _check(before, after)
    sides = make_sides(before, after, every_step)
    changes = figure_changes(sides)
    kinds = kind_changes(sides)
    alike = not any(change.beyond for change in (*changes, *(c for kind in kinds for c in kind.changes)))
    known = sides.a.figures.keys() & sides.b.figures.keys()
    # Work that one side lost would be called work of the other alone.
    rows = collective_changes(sides, alike) if "exposed_comm_ns" in known else ()
    without_kernels = any(run.figures_only for run in (*before, *after))
    with_kernels = with_kernels and not without_kernels and _compute_known(sides)
    unmatched = any(row.transfer is None for row in rows)
    waits = wait_and_transfer(sides, rows)
    identical = not any(change.delta for change in (*changes, *waits))
    first, last = sides.a.shown, sides.b.shown
    return Comparison(
        a=first,
        b=last,
        changes=changes,
        overlap=overlap_change(sides, alike),
        collective_changes=rows,
        kernel_changes=kernel_changes(sides, alike) if with_kernels else (),
        differences=tuple(_differences(sides, before, after)),
        notes=tuple(_notes_on(sides, without_kernels, unmatched, identical)),
        before=sides.a.samples,
        after=sides.b.samples,
        kinds=kinds,
        wait_and_transfer=waits,
        mfu=mfu_change(sides, next(change for change in changes if change.name == "wall_ns")),
        unlike=sides.kinds.unlike,
        compare_gpus=partial(_by_rank, sides, alike),
    )


def _compute_known(sides: Sides) -> bool:
    """Return whether both sides recorded what their devices compute, all of it and as long as it was."""
    samples = (*sides.a.samples, *sides.b.samples)
    lacks = {premise for sample in samples for device in sample.devices for premise in device.split.lacks}
    return not lacks & {RECORDS, LENGTHS}


def _check(before: Sequence[Run], after: Sequence[Run]) -> None:
    if not before or not after:
        raise UsageError("A comparison needs at least one recording before and one after.")
    if len(before) + len(after) > 2:
        for side in (before, after):
            refuse_copies(side)
        if shared := copies((*before, *after)):
            path = (*before, *after)[min(shared)].path
            raise UsageError(f"{path}: a recording is on both sides; leave it out of one.")


def _by_rank(sides: Sides, alike: bool) -> ByRank:
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


# The result in one sentence, and what limits the figures.


def _summarize(comparison: Comparison) -> str:
    wall = comparison.change("wall_ns")
    every = [*comparison.changes, *comparison.wait_and_transfer]
    if not any(change.delta for change in every):
        lacking = any(sample.incomparable for sample in (*comparison.before, *comparison.after))
        return f"No difference beyond noise: every {'known ' * lacking}figure is the same to the nanosecond."
    where = "B is" if comparison.several else "In these two recordings, B is"
    if wall.beyond and (late := _late_rank(comparison, wall)):
        moved = _moved(comparison, waiting=False)
        means = f" Means over ranks{_list(moved)}." if moved else ""
        return f"{where} {_faster(wall)} per step: {late}.{means}"
    moved = _moved(comparison)
    if wall.beyond:
        return f"{where} {_faster(wall)} per step{_list(moved)}."
    if moved:
        return f"{_undecided_wall(wall)}, but its parts differ{_list(moved)}."
    if comparison.unlike:
        return f"Cannot tell: {comparison.unlike}."
    if wall.verdict == "cannot tell":
        return _cannot_tell(comparison, wall)
    unclear = [change for change in comparison.changes if change.verdict == "cannot tell" and change.name in PARTS]
    if unclear and wall.high is None:
        return _cannot_tell(comparison, wall)
    names = ", ".join(FIGURE_NAMES[change.name] for change in unclear[:_MAX_LISTED])
    but = f" Cannot tell for {names}." if unclear else ""
    return f"No difference beyond noise in the step time ({_interval(wall)}{_power(wall)}).{but}"


def _moved(comparison: Comparison, waiting: bool = True) -> list[str]:
    """Return the changes beyond noise but the wall time of all steps, in words: parts first, largest first.

    Args:
        waiting: with exposed communication, which is mostly waiting.
    """
    every = {change.name: change for change in (*comparison.changes, *comparison.wait_and_transfer)}
    causes = () if "idle_ns" in every and every["idle_ns"].beyond else CAUSES
    names = [name for name in every if name not in ("wall_ns", *CAUSES) or name in causes]
    overall = [every[name] for name in names if every[name].beyond]
    named = {change.name for change in overall}
    # The wall time of a kind only where that of all steps is not the headline.
    names += () if every["wall_ns"].beyond else ("wall_ns",)
    texts = [(change, FIGURE_NAMES[change.name], "") for change in overall]
    for kind in comparison.kinds:
        found = [c for c in kind.changes if c.beyond and c.name in names and c.name not in named]
        texts += [(change, FIGURE_NAMES[change.name], f" in steps of kind “{kind.kind}”") for change in found]
    if any(change.name == "exposed_comm_ns" for change, _, _ in texts):
        # Waits and transfers are part of it: nothing is listed twice.
        texts = [one for one in texts if one[0].name not in _OF_COLLECTIVES]
    elif "transfer_ns" not in named:
        rows = [(row.label, row.transfer) for row in _not_resized(comparison.collective_changes) if row.transfer]
        texts += [(change, f"transfer of {label}", _share(change)) for label, change in rows if change.beyond]
    texts.sort(key=lambda one: (one[0].name not in PARTS, -abs(one[0].delta)))
    if not waiting:
        return [f"{name} {signed_duration(one.delta)}{at}" for one, name, at in texts if one.name != "exposed_comm_ns"]
    late = _who_is_late(comparison, every)
    return [
        f"{late if late and change is every['exposed_comm_ns'] else name} {signed_duration(change.delta)}{where}"
        for change, name, where in texts
    ]


def _who_is_late(comparison: Comparison, every: Mapping[str, Change]) -> str:
    """Return which ranks the others wait for, where that is nearly all that exposed communication changed by.

    Where it is not known how much of that is waiting, a late rank has to explain most of the step.
    """
    exposed, wait, wall = (every.get(name) for name in ("exposed_comm_ns", "exposed_wait_ns", "wall_ns"))
    if exposed is None or wall is None or not exposed.beyond:
        return ""
    if wait is None:
        is_known, least = wall.beyond, _MOSTLY * abs(wall.delta)
    else:
        is_known = wait.beyond and _MOSTLY <= wait.delta / (exposed.delta or 1) <= 1 / _MOSTLY
        least = abs(wait.delta) / 2
    late, ns = _latest(comparison, exposed) if is_known else ("", 0)
    return f"waiting because {late}" if late and ns >= least else ""


def _late_rank(comparison: Comparison, wall: Change) -> str:
    """Return which ranks are late with what a step loses by it, where that is most of what it changed by."""
    wait = next((change for change in comparison.wait_and_transfer if change.name == "exposed_wait_ns"), None)
    if wait is not None and wait.delta / wall.delta < _WAITING:
        return ""
    late, ns = _latest(comparison, wall)
    is_most = late and _LATE_SHARE <= ns / abs(wall.delta) <= 1 / _MOSTLY
    return f"{late} {signed_duration(math.copysign(ns, wall.delta))}" if is_most else ""


def _latest(comparison: Comparison, change: Change) -> tuple[str, int]:
    """Return which ranks are late in the run with more of a figure, in words, and what a step loses more by it."""
    now = change.delta > 0
    more, less = (comparison.b, comparison.a) if now else (comparison.a, comparison.b)
    if isinstance(more.run, StoredRun) or isinstance(less.run, StoredRun):
        return "", 0
    before, after = Counter[tuple[int, ...]](), Counter[tuple[int, ...]]()
    causes: dict[tuple[int, ...], str] = {}
    for lost, run in ((before, less.run), (after, more.run)):
        for finding in sorted(_stragglers(run), key=lambda finding: finding.figure[0]):
            late_ranks = finding.about(Straggler)
            ranks = tuple(late_ranks.ranks)
            lost[ranks] += finding.figure[0]
            causes[ranks] = late_ranks.cause
    if not after:
        return "", 0
    (ranks, ns), *_ = after.most_common(1)
    is_one, who = len(ranks) == 1, ranks_text(ranks)
    late = (("is" if is_one else "are") if now else ("was" if is_one else "were")) + " late"
    if DELAYS[causes[ranks]].of_host:
        who = f"{who}'s host" if is_one else f"the hosts of {who}"
    elif causes[ranks] == "compute":
        who, late = f"the compute of {who}", f"{'takes' if now else 'took'} longer"
    return f"{who} {late}", ns - before[ranks]


def _stragglers(run: Run) -> list[Finding]:
    from dptrace.replay.findings import findings_of

    return [finding for finding in findings_of(run) if finding.kind == "straggler"]


def _not_resized(rows: Sequence[CollectiveChange]) -> list[CollectiveChange]:
    """Leave out sizes that one run alone has where the other has others of the kind: these are no gain and no loss."""

    def kind(row: CollectiveChange) -> tuple[str, str]:
        return row.collective.kind, row.collective.group

    resized = {kind(row) for row in rows if not row.a_count} & {kind(row) for row in rows if not row.b_count}
    return [row for row in rows if (row.a_count and row.b_count) or kind(row) not in resized]


def _share(change: Change) -> str:
    share = change.delta_percent
    return "" if share is None else f" ({share:+.0f} %)".replace("-", MINUS)


def _undecided_wall(wall: Change) -> str:
    if wall.verdict == "cannot tell":
        return f"Cannot tell whether the step time differs ({_interval(wall)})"
    return f"The step time shows no difference beyond noise ({_interval(wall)})"


def _cannot_tell(comparison: Comparison, wall: Change) -> str:
    if few := comparison.too_few_steps:
        return f"Cannot tell: {too_few(few)}; {_medians(wall)}."
    if wall.drifts:
        return f"Cannot tell: the steps of a recording drift by more than B's difference ({_interval(wall)})."
    return f"Cannot tell whether the step time differs ({_interval(wall)}{_power(wall)})."


def _medians(wall: Change) -> str:
    """Return how the median steps differ, without claiming that the runs do."""
    delta = wall.b_median - wall.a_median
    if abs(delta) < _MIN_NS:
        return "the median steps are of equal length"
    percent = percent_of(delta, wall.a_median)
    share = "" if percent is None else f" ({abs(percent):.1f} %)"
    return f"B's median step was {duration(abs(delta))}{share} {'longer' if delta > 0 else 'shorter'}"


def _interval(change: Change) -> str:
    """Return a difference with its interval: ``+2.94 ms, 95 % interval −1 ms to +7 ms``."""
    if change.low is None or change.high is None:
        return f"B {signed_duration(change.delta)}"
    low, high = signed_duration(change.low), signed_duration(change.high)
    return f"B {signed_duration(change.delta)}, 95 % interval {low} to {high}"


def _power(change: Change) -> str:
    """Return the smallest change that these recordings show in 80 % of cases."""
    if change.detectable is None:
        return ""
    share = f" ({100 * change.detectable / change.a:.1f} %)" if change.a else ""
    return f"; a change of {duration(change.detectable)}{share} would be found"


def _faster(wall: Change) -> str:
    if abs(wall.delta) < _MIN_NS:
        return "neither faster nor slower"
    percent = wall.delta_percent
    share = "" if percent is None else f" ({abs(percent):.1f} %)"
    return f"{duration(abs(wall.delta))}{share} {'slower' if wall.delta > 0 else 'faster'}"


def _list(texts: Sequence[str]) -> str:
    return f": {', '.join(texts[:_MAX_LISTED])}" if texts else ""


def _notes_on(sides: Sides, without_kernels: bool, unmatched: bool, identical: bool = False) -> list[str]:
    """Return what limits the figures, a sentence each.

    Args:
        without_kernels: whether kernels are not compared.
        unmatched: whether transfer and wait of some collectives are unknown.
        identical: whether every figure is the same, so that no change can be mistaken for one of the machine.
    """
    own = [
        [(*sample.notes, *_not_compared(sample), *_left_out(sample)) for sample in side.samples]
        for side in (sides.a, sides.b)
    ]
    notes = shared_notes(own[0], own[1])
    notes += sides.kinds.only
    if sides.kinds.unlike and sides.kinds.comparable:
        notes.append(f"Steps of all kinds are compared together, and only for what is evident: {sides.kinds.unlike}.")
    if len(sides.kinds.labels) > 1:
        kinds = " and ".join(f"“{label}”" for label in sides.kinds.labels)
        notes.append(f"Steps are compared kind by kind, each with the same weight on both sides: {kinds}.")
    if without_kernels:
        notes.append("Kernels are not compared: a run was opened with figures_only.")
    if unmatched:
        notes.append("Transfer and wait are given only for collectives that every rank of their group recorded.")
    return notes if identical and not sides.several else [*notes, *_on_recordings(sides)]


def shared_notes(
    before: Sequence[Sequence[str]], after: Sequence[Sequence[str]], sides: tuple[str, str] = ("A", "B")
) -> list[str]:
    """Name the recordings that each note is on, each note once; a side whose recordings all have it by its letter.

    >>> shared_notes([["late"]], [["late", "cut"]])
    ['A and B: late', 'B: cut']
    >>> shared_notes([["late"], ["late"]], [["cut"], ["late"], []])
    ['A and B2: late', 'B1: cut']
    """
    texts = []
    for note in dict.fromkeys(chain(*before, *after)):
        names = [
            name for letter, side in zip(sides, (before, after), strict=True) for name in _having(note, letter, side)
        ]
        listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
        texts.append(f"{listed}: {note}")
    return texts


def _having(note: str, letter: str, side: Sequence[Sequence[str]]) -> list[str]:
    having = [number for number, notes in enumerate(side, 1) if note in notes]
    return [letter] if len(having) == len(side) else [f"{letter}{number}" for number in having]


def _not_compared(sample: RunSample) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for name, why in sample.incomparable.items():
        reasons.setdefault(why, []).append(name)
    return [f"not compared, because {why}: {', '.join(figures_in_words(names))}." for why, names in reasons.items()]


def _left_out(sample: RunSample) -> list[str]:
    if not sample.left_out:
        return []
    listed = ", ".join(f"{name} ({duration(wall)})" for name, wall in sample.left_out[:_MAX_LISTED_STEPS])
    rest = len(sample.left_out) - _MAX_LISTED_STEPS
    more = f" and {rest} more" if rest > 0 else ""
    usual = duration(float(sample.wall.mean()))
    return [f"outlier steps left out (the other steps take {usual}): {listed}{more}."]


def _on_recordings(sides: Sides) -> list[str]:
    if not sides.several:
        return [_ONE_EACH]
    counts = f"{len(sides.a.samples)} and {plural(len(sides.b.samples), 'recording')}"
    notes = [f"Noise is estimated from {counts}: how much recordings of one side differ."]
    when = [[str(s.run.metadata.get("created") or "") for s in side.samples] for side in (sides.a, sides.b)]
    if all(chain(*when)) and (max(when[0]) < min(when[1]) or max(when[1]) < min(when[0])):
        notes.append(
            "All recordings of one side were made before those of the other: a machine that gets slower or faster in "
            "the meantime looks like a change. Alternate the recordings."
        )
    return notes
