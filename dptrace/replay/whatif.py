"""What a run's steps would take if something were different, with the error of the replay and the reasons to doubt."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.analysis.cross_rank.clocks import why_unknown
from dptrace.analysis.per_gpu.split import FIGURE_WORDS, FIGURES
from dptrace.core.checks import holds
from dptrace.core.intervals import median, sums
from dptrace.core.table import html_table, step_number, with_missing, with_strings
from dptrace.core.units import duration, milliseconds, plural, share, signed_milliseconds
from dptrace.replay import simulation
from dptrace.replay.graph.build import Model, build_model, residuals_without_inferred
from dptrace.replay.graph.schedule import Times
from dptrace.replay.paths import PathPiece, longest_pieces, path_of_run
from dptrace.replay.representatives import MOST_REPLAYED, Representatives, representatives
from dptrace.replay.simulation import (
    WALL,
    Outcome,
    SteadyState,
    StepSelection,
    choose,
    median_range,
    outcome,
    shared_steps,
    steady_state,
    timeline_at,
    unexplained_ns,
)
from dptrace.replay.transforms.change import Change, Compute, PerfectOverlap, Straggler
from dptrace.replay.transforms.interference import Factor, Interference, measure, with_interference
from dptrace.replay.transforms.launches import Accumulate
from dptrace.replay.transforms.replicate import SHARED, Replicate, with_replication
from dptrace.replay.transforms.schedule import Reschedule
from dptrace.run.run import Run, whole_run

if TYPE_CHECKING:
    import pandas as pd


# When a replay can't tell, and why.

_MAX_ERROR = 0.05
"""Share of a step by which its replay may miss it, or that may lack a recorded reason."""
_MAX_INFERRED = 0.04
"""Share of a step that waits may explain which only times suggest."""
_MAX_ABSENT, _MAX_HOST = 0.5, 0.95
"""Shares of the critical path beyond which ranks that were not recorded, or hosts, set the length of a step."""
_MOST_ABSENT = 0.25
"""Share of a job's ranks up to which those that were not recorded are taken for ranks like the others."""
_MAX_BOUND = 0.05
"""Share of a step from which it is said that the steady state bounds a prediction."""
_MOST_BOUND = 0.25
"""Share of what a change gains at first from which the steady state leaves too little to tell."""


class Doubt(msgspec.Struct, frozen=True):
    """A reason to distrust an answer."""

    kind: str
    """``replay_misses``, ``clocks``, ``unexplained``, ``inferred``, ``absent_ranks``, ``unsized``, ``steady_state``,
    ``host_sets``, ``contention``, ``represented`` (some ranks are replayed for all), ``assumed`` (what a change takes
    for granted)."""
    text: str
    refuses: bool
    """Whether the answer is "cannot tell"."""


class Question(msgspec.Struct, frozen=True):
    """What the doubts about an answer depend on; times are ns per step."""

    model: Model
    """Unchanged."""
    changes: tuple[Change, ...]
    measured_ns: float
    replayed_ns: float
    predicted_ns: float
    """Before it is bound by the steady state."""
    bound_ns: float
    """The shortest step that the steady state allows."""
    steady: SteadyState
    """Of the changed run."""
    steps: int
    """Of the whole recording."""
    absent_share: float
    """Share of the unchanged run's critical path that waits for ranks which were not recorded."""
    host_share: float
    """Share of it that hosts take."""


def inferred_ns(model: Model) -> int:
    """Return how much of the worst device's time waits explain that only times suggest, over the recording."""
    task, late = residuals_without_inferred(model.graph)
    spent = sums(model.graph.process[task], np.maximum(late, 0), len(model.processes))
    return int(spent.max(initial=0))


def doubts(question: Question, of_replay: Iterable[Doubt] | None = None) -> tuple[Doubt, ...]:
    """Return the reasons to distrust an answer, those that refuse one first.

    Args:
        of_replay: what :func:`doubts_of_replay` returns, if already computed: it is the same for all changes.
    """
    found = [*(doubts_of_replay(question) if of_replay is None else of_replay)]
    found += [*_about_absent(question), *_about_pace(question)]
    for change in question.changes:
        found += [Doubt("assumed", text, False) for text in change.doubts(question.model)]
    return tuple(sorted(found, key=lambda doubt: not doubt.refuses))


def doubts_of_replay(question: Question) -> Iterator[Doubt]:
    """Check whether the replay of the unchanged run explains the run."""
    measured, steps = question.measured_ns, question.steps
    error = abs(question.replayed_ns / measured - 1) if measured else 0.0
    if error > _MAX_ERROR:
        text = f"The replay of the unchanged run misses its step by {share(error)}: a dependency is missing or wrong."
        yield Doubt("replay_misses", text, True)
    across = question.model.whole.cross_rank
    if unknown := why_unknown(across.matches, across.clocks, _MAX_ERROR * measured):
        yield Doubt("clocks", unknown, True)
    open_ns = unexplained_ns(question.model) / steps
    if open_ns > _MAX_ERROR * measured:
        graphs = any("GraphLaunch" in name for name in question.model.graph.names)
        why = " The trace does not record what the nodes of a CUDA graph wait for." if graphs else ""
        text = f"{duration(open_ns)} of waiting in each step have no recorded reason.{why}"
        yield Doubt("unexplained", text, True)
    inferred = inferred_ns(question.model) / steps
    if question.model.of is not None:
        yield Doubt("represented", question.model.of.text, False)
    if inferred > _MAX_INFERRED * measured:
        text = f"{duration(inferred)} of waiting in each step are explained by times alone, so the range is wide."
        yield Doubt("inferred", text, False)


def _about_absent(question: Question) -> Iterator[Doubt]:
    """Check whether ranks that were not recorded, or transfers that look like waiting for them, may decide."""
    model = question.model
    lacking = model.run.world_size - len(model.whole.ranks)
    if question.absent_share > _MAX_ABSENT:
        text = (
            "Ranks wait in collectives that lack ranks: whether these come late or the transfer takes long is unknown, "
            f"and either may set {share(question.absent_share)} of the step."
        )
        yield Doubt("absent_ranks", text, not 0 < lacking <= _MOST_ABSENT * model.run.world_size)
    elif lacking > 0 and question.changes and model.bounds_absent:
        text = (
            f"{plural(lacking, 'rank')} of the job {'was' if lacking == 1 else 'were'} not recorded. The least gain is "
            "that with them as late as the last of the others at each of their collectives."
        )
        yield Doubt("absent_ranks", text, False)
    if transfers_are_unknown(model, question.changes, question.measured_ns):
        text = (
            "Ranks are missing from collectives, and none with all of its ranks shows how long these transfer: how "
            "much of them is waiting is unknown, so the gain is what is possible at most."
        )
        yield Doubt("absent_ranks", text, False)
    asked = any(change.collectives for change in question.changes)
    if asked and (unsized_ns := _unsized_ns(question.model) / question.steps) > _MAX_ERROR * question.measured_ns:
        spent = f"{duration(unsized_ns)} of each step go to transfers in collectives"
        if question.model.lacks_ranks:
            who = model.whole.cross_rank.not_recorded or "ranks are missing"
            text = (
                f"{who[0].upper()}{who[1:]}, and {spent} whose sizes the trace does not have: waiting and transfer "
                "can't be separated. Record all ranks, or with a torch that writes the sizes of collectives."
            )
        else:
            text = f"{spent} that are not matched across ranks: how long these wait for each other is unknown."
        yield Doubt("unsized", text, True)


def transfers_are_unknown(model: Model, changes: Sequence[Change], step_ns: float) -> bool:
    """Return whether what these changes gain may be waiting for ranks that were not recorded."""
    if not any(change.transfers for change in changes):
        return False
    unknown_ns = int(model.transfers.duration_ns[~model.transfers.shown].sum()) // max(1, len(model.processes))
    steps = max(1, *(len(timeline.windows) for timeline in model.run.timelines))
    return unknown_ns > _MAX_ERROR * step_ns * steps


def _unsized_ns(model: Model) -> int:
    """Return how long the mean rank was in transfers that neither the peers nor others of their size show.

    What runs in steps that some rank has not recorded, or not whole, is not asked for.
    """
    transfers = model.transfers
    unknown = transfers.absent & ~transfers.sized if model.lacks_ranks else transfers.absent
    steps = np.append(model.run.cross_rank.matches.step, "")[transfers.match]
    unknown &= (steps == "") | np.isin(steps, shared_steps(model.run.timelines))
    return model.transferring_ns(unknown)


def _about_pace(question: Question) -> Iterator[Doubt]:
    """Check what sets the pace."""
    measured, steady = question.measured_ns, question.steady
    only_host = bool(question.changes) and not any(change.host for change in question.changes)
    beyond = question.bound_ns - question.predicted_ns
    if beyond > _MAX_BOUND * measured:
        side, needs = "host", steady.host_ns
        if steady.device_ns > needs:
            side, needs = "device", steady.device_ns
        most = beyond > _MOST_BOUND * (measured - question.predicted_ns)
        text = (
            f"The recording is {'too short to tell' if most else 'short'}: a step could take "
            f"{duration(question.predicted_ns)} at first, but the {side} alone needs {duration(needs)} for one, which "
            "bounds the prediction."
        )
        yield Doubt("steady_state", text, most)
    elif only_host and question.host_share > _MAX_HOST:
        text = (
            f"The host sets the length of the step ({share(question.host_share)} of it), including what the profiler "
            "costs it: faster devices or links gain little."
        )
        yield Doubt("host_sets", text, False)
    if question.model.run.on_cpu and question.changes:
        text = "gloo and compute compete for cores, which a replay knows only roughly: the range is wide."
        yield Doubt("contention", text, False)


SCHEMA = 1
"""Version of the JSON of a what-if."""
_MAX_PIECES = 5
"""Longest pieces of a path that an answer names."""
_TIMES = (
    *("measured_step_ns", "replayed_step_ns", "predicted_step_ns", "low_ns", "high_ns", "run_gain_ns", "step_gain_ns"),
    *("micro_steps", "predicted_ns_per_micro_step"),
)
"""What JSON has of an answer as it is."""
MIN_ERROR = 0.01
"""Share of a predicted step by which it is uncertain at least."""
_CONTENTION = 0.07
"""The same on CPUs, where threads of gloo compete with compute for cores."""

MOVING = (Reschedule, Replicate, PerfectOverlap)
"""Changes that move compute under communication, or out of it."""


class RankAnswer(msgspec.Struct, frozen=True):
    """The answer for one GPU; times are medians over its steps."""

    rank: int
    device: int
    measured_ns: dict[str, int]
    """By the names in FIGURES."""
    replayed_ns: dict[str, int]
    predicted_ns: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        return {
            "rank": self.rank,
            "device": self.device,
            "measured_step_ns": self.measured_ns["wall_ns"],
            "replayed_step_ns": self.replayed_ns["wall_ns"],
            "predicted_step_ns": self.predicted_ns["wall_ns"],
            "measured": self.measured_ns,
            "replayed": self.replayed_ns,
            "predicted": self.predicted_ns,
        }


@dataclass(frozen=True, eq=False)
class WhatIf:
    """What a run's steps would take if something were different; times are medians over steps of the mean rank."""

    path: str
    changes: tuple[str, ...]
    """What is different, in words; empty for a replay of the run as it was."""
    steps: tuple[str, ...]
    measured_step_ns: int
    replayed_step_ns: int
    """By the replay of the unchanged run."""
    predicted_step_ns: int
    low_ns: int
    high_ns: int
    """Range of the prediction: by how much the change gains in different steps, by what was inferred, and by the error
    of the replay; not by how much recorded steps differ."""
    run_gain_ns: int
    """How much less all of the steps would take together; negative where more."""
    step_gain_ns: int
    """The same for each of them: the mean, where the steps above are medians."""
    micro_steps: int
    """Micro-steps in a predicted step, each with the samples of a measured one."""
    measured: dict[str, int]
    predicted: dict[str, int]
    """Figures of a step, by the names in FIGURES: medians over steps of the mean rank."""
    steady: SteadyState
    path_ns: dict[str, int]
    """The critical path of the predicted run by kind, per step; by the names in LINK_KINDS."""
    longest: tuple[PathPiece, ...]
    """The longest pieces of that path: what remains to be removed."""
    ranks: tuple[RankAnswer, ...]
    doubts: tuple[Doubt, ...]
    interference: Factor | None
    """How much compute is slowed under communication, where the changes move it; else None."""
    notes: tuple[str, ...]
    """What the dependencies were inferred from, a sentence each."""
    replayed_ranks: tuple[int, ...]
    """The ranks that were replayed: of many, each for those that are like it."""
    apart_ns: int | None
    """The most by which a figure of a step differs between a rank and the one that is replayed for it; None where all
    ranks are replayed."""
    _outcome: Outcome = field(repr=False)
    _selected: tuple[Run, Run] = field(repr=False)

    @property
    def can_tell(self) -> bool:
        """Whether no doubt refuses the answer."""
        return not any(doubt.refuses for doubt in self.doubts)

    @property
    def predicted_ns_per_micro_step(self) -> int:
        """The predicted time of as many samples as a measured step has."""
        return round(self.predicted_step_ns / self.micro_steps)

    @cached_property
    def run(self) -> Run:
        """The run as predicted: its timelines with other times, for pages, comparisons and exports.

        Its steps are those of the simulation, neither corrected by the error of the replay nor bound by the steady
        state.
        """
        return predicted_run(self._outcome.model, self._outcome.times, self.changes, self._selected)

    def figures(self) -> pd.DataFrame:
        """Return the figures of a step on each GPU, medians over steps: a row per GPU and figure.

        Columns:
            rank, device (int): as in :meth:`dptrace.Run.steps`.
            figure (str): ``forward_ns``, ``backward_ns`` …
            measured_ns, replayed_ns, predicted_ns (int, ns): as recorded, by the unchanged replay, with the changes.
        """
        import pandas as pd

        rows = [
            (rank.rank, rank.device, name, rank.measured_ns[name], rank.replayed_ns[name], rank.predicted_ns[name])
            for rank in self.ranks
            for name in FIGURES
        ]
        names = ["rank", "device", "figure", "measured_ns", "replayed_ns", "predicted_ns"]
        return with_strings(pd.DataFrame(rows, columns=names))

    def _repr_html_(self) -> str:
        """Return a small table for notebooks: the step and its parts, measured and predicted, and the doubts."""
        change = "; ".join(self.changes) or "replayed as recorded"
        between = f"{milliseconds(self.low_ns)} to {milliseconds(self.high_ns)}"
        figures = [(FIGURE_WORDS[name], self.measured[name], self.predicted[name]) for name in FIGURES]
        rows = [(name, milliseconds(a), milliseconds(b), signed_milliseconds(b - a)) for name, a, b in figures]
        return html_table(
            f"{self.path}: {change}; range of the predicted wall time {between} ms",
            ("ms per step", "measured", "predicted", "difference"),
            rows,
            (doubt.text for doubt in self.doubts),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as plain data, as ``dptrace whatif --json`` prints it."""
        return {
            "schema": SCHEMA,
            "run": self.path,
            "changes": list(self.changes),
            "steps": list(self.steps),
            "can_tell": self.can_tell,
            **{name: getattr(self, name) for name in _TIMES},
            "host_alone_ns": self.steady.host_ns,
            "device_alone_ns": self.steady.device_ns,
            "measured": self.measured,
            "predicted": self.predicted,
            "critical_path": {
                "by_kind": self.path_ns,
                "longest": [with_missing(msgspec.structs.asdict(piece)) for piece in self.longest],
            },
            "ranks": [rank.to_dict() for rank in self.ranks],
            "interference": None if self.interference is None else self.interference.to_dict(),
            "doubts": msgspec.to_builtins(self.doubts),
            "notes": list(self.notes),
            "all_ranks": self.apart_ns is None,
            "replayed_ranks": list(self.replayed_ranks),
            "apart_ns": self.apart_ns,
        }


def predicted_run(model: Model, times: Times, changes: Sequence[str], selected: tuple[Run, Run]) -> Run:
    """Return a run with simulated times, cut to the ranks and steps that were selected."""
    whole, run = model.run, selected[0]
    note = f"Predicted, not recorded: {', '.join(changes) or 'a replay of the run as it was'}."
    if model.of is not None:
        note += f" It has the {len(whole.timelines)} ranks that were replayed, of {len(model.of.whole.timelines):,}."
    timelines = tuple(timeline_at(model, number, times) for number in range(len(whole.timelines)))
    # Pages and tables name a run by its path.
    predicted = type(whole)(
        f"{whole.path} (predicted)", timelines, whole.metadata, (note, *whole.notes), whole.world_size
    )
    if run is selected[1]:
        return predicted
    names = {name for timeline in run.timelines for name in timeline.windows.names}
    numbers = sorted(number for number in map(step_number, names) if number is not None)
    ranks = set(run.ranks) & set(predicted.ranks)
    return predicted.select(ranks, (numbers[0], numbers[-1]) if numbers else None)


class Replay:
    """A run prepared for what-ifs: its graph and the replay of the run as it was."""

    def __init__(self, run: Run, of: Representatives | None = None) -> None:
        """Read the files of a run again, and build its graph.

        Args:
            of: the ranks that are replayed for all; None for all ranks.

        Raises:
            DptraceError: a file can't be read again, or no step is on all ranks.
        """
        self.run = run
        self.whole = whole_run(run)
        self.recorded: StepSelection = choose(run, self.whole)
        self.model = build_model(run, of)
        self.chosen: StepSelection = self.recorded.replayed(of)

    @cached_property
    def base(self) -> Outcome:
        """The run as it was, with all waits."""
        return outcome(self.model, self.chosen)

    @cached_property
    def strict(self) -> Outcome:
        """The run as it was, without the waits that only times suggest."""
        return outcome(self.model.without_inferred(), self.chosen)

    @cached_property
    def held(self) -> Outcome | None:
        """The run as it was, where ranks that were not recorded come as late as they may have; None without any."""
        return outcome(self.model.with_absent_as_late(), self.chosen) if self.model.bounds_absent else None

    @cached_property
    def early(self) -> Outcome | None:
        """The run as it was, where ranks that were not recorded never come last; None where they nowhere seem to."""
        return outcome(self.model.with_absent_early(), self.chosen) if self.model.has_absent_late else None

    @cached_property
    def measured(self) -> NDArray[np.int64]:
        """Figures as recorded: timelines × steps × figures."""
        return simulation.recorded_figures(self.whole, self.recorded)

    @cached_property
    def replayed(self) -> NDArray[np.int64]:
        """The same by the replay of the run as it was."""
        return simulation.simulated_figures(self.base, self.chosen)

    @cached_property
    def _replayed_step_ns(self) -> int:
        """The median step by the replay of the run as it was."""
        return round(float(median(simulation.simulated_walls(self.base, self.chosen).mean(axis=0))))

    @property
    def _recorded_steps(self) -> int:
        """Number of steps that are replayed, of which the answer may be about a few."""
        return max(len(timeline.windows) for timeline in self.model.run.timelines)

    @cached_property
    def steady(self) -> SteadyState:
        """The steady state of the run as it was."""
        return steady_state(self.model)

    def whatif(self, changes: Sequence[Change] = ()) -> WhatIf:
        """Predict the run with these changes, all at once.

        Raises:
            DptraceError: the run does not have what would change.
        """
        changes = with_replication(self.model, changes)
        interference = self.interference if any(isinstance(change, MOVING) for change in changes) else None
        changed, variants, steady, bound = self._changed(changes, interference)
        model = changed.model
        path = path_of_run(model, changed.times)
        predicted = _bounded(variants[0], bound)
        holds(_step(predicted) >= round(bound) - 1, "no step is shorter than hosts and devices need")
        longer_ns = _step(predicted) - _step(self.measured)
        # What comes before the first step counts in none.
        gain = float((self.base.length_ns - changed.length_ns).mean())
        if gain > 0 and _step(variants[0]) < round(bound):
            gain = min(gain, max(0.0, self._replayed_step_ns - round(bound)))
        if _is_only_faster(self.model, model):
            gain = max(0.0, gain)
            if longer_ns > 0 and _micro_steps(changes) == 1:
                predicted = self.measured  # the median may take up time that moves between steps
        low, high = self._range([_bounded(variant, bound) for variant in variants], changes)
        low = min(low, _step(predicted))
        return WhatIf(
            path=self.run.path,
            changes=tuple(change.describe() for change in changes),
            steps=self.chosen.steps,
            measured_step_ns=_step(self.measured),
            replayed_step_ns=_step(self.replayed),
            predicted_step_ns=_step(predicted),
            low_ns=low,
            high_ns=high,
            run_gain_ns=round(gain * len(self.chosen.steps)),
            step_gain_ns=round(gain),
            micro_steps=_micro_steps(changes),
            measured=_figures(self.measured.mean(axis=0)),
            predicted=_figures(predicted.mean(axis=0)),
            steady=steady,
            path_ns={kind: round(ns / self._recorded_steps) for kind, ns in path.by_kind().items()},
            longest=longest_pieces(model, path, _MAX_PIECES),
            ranks=self._ranks(predicted),
            doubts=self.doubts_about(tuple(changes), _step(variants[0]), bound, steady),
            replayed_ranks=self.model.run.ranks,
            apart_ns=None if self.model.of is None else self.model.of.apart_ns,
            interference=None if interference is None else interference.factor,
            notes=(*self.model.notes, *_moved(round(gain), longer_ns, interference)),
            _outcome=changed,
            _selected=(self.run, self.whole),
        )

    @cached_property
    def interference(self) -> Interference:
        """How much compute is slowed under communication."""
        return measure(self.model)

    def _changed(
        self, changes: Sequence[Change], interference: Interference | None
    ) -> tuple[Outcome, list[NDArray[np.int64]], SteadyState, float]:
        """Apply the changes; return the outcome, the figures of each variant, the steady state and its bound."""
        plain = [change for change in changes if not isinstance(change, Accumulate)]
        models = self._models(plain, interference)
        changed = [self._outcome(model) for model in models]
        steady = steady_state(models[0]) if plain else self.steady
        variants, bound = self._variants(changed), self.bound(steady)
        for change in changes:
            if isinstance(change, Accumulate):
                # Micro-steps without all-reduce and optimizer, and a last one that has both.
                without = [outcome(change.apply(model), self.chosen) for model in models]
                more = change.micro_steps - 1
                variants = [last + more * each for last, each in zip(variants, self._variants(without), strict=True)]
                bound += more * self.bound(steady_state(without[0].model))
        return changed[0], variants, steady, bound

    def _models(self, changes: Sequence[Change], interference: Interference | None) -> list[Model]:
        """Return the changed models: with all waits, without those that only times suggest, at other slowdowns."""
        model, strict = self.model, self.strict.model
        held = [self.held.model] if self.held is not None and changes else []
        for change in changes:
            model, strict, held = change.apply(model), change.apply(strict), [change.apply(one) for one in held]
        if interference is None:
            return [model, strict, *held]
        slowed = [with_interference(self.model, self.base.times, model, one) for one in interference.variants()]
        most = slowed[-1]
        if self.model.run.on_cpu and any(isinstance(change, Replicate) for change in changes):
            most = Compute(1 / SHARED).apply(most)
        strict = with_interference(self.strict.model, self.strict.times, strict, interference)
        return [slowed[0], strict, *slowed[1:-1], most]

    def _outcome(self, model: Model) -> Outcome:
        known = (self.base, self.strict)
        return next((one for one in known if one.model is model), None) or outcome(model, self.chosen)

    def _variants(self, changed: Sequence[Outcome]) -> list[NDArray[np.int64]]:
        """Return the figures of changed steps; the second of them is without the waits that only times suggest."""
        before = [self.strict if number == 1 else self.base for number in range(len(changed))]
        return [self.measured + after.by_end - one.by_end for one, after in zip(before, changed, strict=True)]

    def bound(self, steady: SteadyState) -> float:
        """Return the shortest step of a changed run: its steady state, less what the recording stays below its own."""
        ahead = max(0.0, self.steady.step_ns - _step(self.measured))
        return steady.step_ns - ahead

    def _range(self, variants: Sequence[NDArray[np.int64]], changes: Sequence[Change]) -> tuple[int, int]:
        """Return the range of the predicted step: that of the change, without how much recorded steps differ."""
        measured = self.measured[:, :, WALL].mean(axis=0)
        spread = _micro_steps(changes) * (measured - median(measured))
        walls = [variant[:, :, WALL].mean(axis=0) for variant in variants]
        predicted = float(median(walls[0]))
        # Each step as if the recorded one were the typical one: what is left differs by the change.
        alike = [wall - spread for wall in walls]
        ranges = [median_range(wall + predicted - float(median(alike[0]))) for wall in alike]
        low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
        error = self.error_ns(round(predicted) if changes else 0)
        if transfers_are_unknown(self.model, changes, _step(self.measured)):
            high = max(high, float(_micro_steps(changes) * _step(self.measured) - error))
        return max(0, round(min(low, predicted)) - error), round(max(high, predicted)) + error

    def error_ns(self, predicted_ns: int) -> int:
        """Return by how much a predicted step is uncertain at least: the error of the replay, or a share of it.

        Where some ranks are replayed for all, it is at least by how much the mean rank differs from the one that stands
        for it.
        """
        least = _CONTENTION if self.model.run.on_cpu else MIN_ERROR
        apart = 0 if self.model.of is None else round(float(self.model.of.far_ns.mean()))
        return max(abs(self._replayed_step_ns - _step(self.measured)), round(least * predicted_ns), apart)

    def _ranks(self, predicted: NDArray[np.int64]) -> tuple[RankAnswer, ...]:
        timelines = self.whole.timelines
        tables = zip(self.recorded.timelines, self.measured, self.replayed, predicted, strict=True)
        return tuple(
            RankAnswer(timelines[number].rank, timelines[number].device, *map(_figures, figures))
            for number, *figures in tables
        )

    def doubts_about(
        self, changes: tuple[Change, ...], predicted_ns: int, bound_ns: float, steady: SteadyState
    ) -> tuple[Doubt, ...]:
        """Return the reasons to distrust what the changes give.

        Args:
            predicted_ns: the median step, before it is bound.
            bound_ns: its lower bound by the steady state.
            steady: that of the changed run.
        """
        about = {"predicted_ns": predicted_ns, "bound_ns": bound_ns, "steady": steady}
        return doubts(msgspec.structs.replace(self._question, changes=changes, **about), self._doubts_of_replay)

    @cached_property
    def doubts(self) -> tuple[Doubt, ...]:
        """The reasons to distrust what the replay says of the run as it was: all that is said of it depends on them."""
        return self.doubts_about((), _step(self.measured), 0.0, self.steady)

    @cached_property
    def _doubts_of_replay(self) -> tuple[Doubt, ...]:
        return tuple(doubts_of_replay(self._question))

    @cached_property
    def _question(self) -> Question:
        """What the doubts about the unchanged run depend on."""
        by_kind = path_of_run(self.model, self.base.times).by_kind()
        length = max(1, sum(by_kind.values()))
        return Question(
            model=self.model,
            changes=(),
            measured_ns=_step(self.measured),
            replayed_ns=self._replayed_step_ns,
            predicted_ns=0,
            bound_ns=0.0,
            steady=self.steady,
            steps=self._recorded_steps,
            absent_share=by_kind["absent_ranks"] / length,
            host_share=by_kind["host"] / length,
        )


def replay_of(run: Run, of: Representatives | None = None) -> Replay:
    """Return a run prepared for what-ifs; it is prepared once, and keeps its graph as it keeps a cached property.

    Args:
        of: the ranks that are replayed for all; None for all ranks.
    """
    known: dict[tuple[int, ...], Replay] = vars(run).setdefault("replays", {})
    ranks = () if of is None else of.run.ranks
    if ranks not in known:
        known[ranks] = Replay(run, of)
    return known[ranks]


def replay_of_some(run: Run, alone: Sequence[int] = ()) -> Replay:
    """Return a run prepared for what-ifs: of many ranks, some for all that are like them.

    Args:
        alone: ranks that stand for no others.
    """
    return replay_of(run, representatives_of(run, alone))


def representatives_of(run: Run, alone: Sequence[int] = ()) -> Representatives | None:
    """Return the ranks that :func:`replay_of_some` replays, which are chosen once; None of all."""
    whole = whole_run(run)
    selected = run.ranks if run is not whole and len(run.ranks) <= MOST_REPLAYED else ()
    known: dict[object, Representatives | None] = vars(run).setdefault("representatives", {})
    if (key := tuple(alone)) not in known:
        known[key] = representatives(whole, selected, alone)
    return known[key]


def whatif(run: Run, changes: Sequence[Change], all_ranks: bool = False) -> WhatIf:
    """Predict a run with these changes, all at once.

    Args:
        all_ranks: replay every rank; otherwise, of many, some for all that are like them.

    Raises:
        DptraceError: the run does not have what would change.
    """
    whole = whole_run(run)
    for change in changes:
        change.check(whole)
    late = [change.rank for change in changes if isinstance(change, Straggler)]
    return (replay_of(run) if all_ranks else replay_of_some(run, late)).whatif(changes)


def _moved(gain_ns: int, longer_ns: int, interference: Interference | None) -> list[str]:
    """Return notes on the change: that steps take less although the median one is longer, and interference."""
    notes = [] if interference is None else [interference.sentence()]
    if longer_ns > 0 and gain_ns >= 0:
        notes.append(
            f"The median step is {duration(longer_ns)} longer although all together take no more: time that one step "
            "no longer waits for moves into the next."
        )
    return notes


def _is_only_faster(before: Model, after: Model) -> bool:
    """Return whether a changed model has the tasks and edges that it had, none of them longer."""
    old, new = before.graph, after.graph
    edges = ((old.edge.src, new.edge.src), (old.edge.dst, new.edge.dst), (old.edge.from_end, new.edge.from_end))
    if len(old) != len(new) or not all(np.array_equal(one, other) for one, other in edges):
        return False
    return bool((new.duration_ns <= old.duration_ns).all() and (new.edge.lag_ns <= old.edge.lag_ns).all())


def _micro_steps(changes: Sequence[Change]) -> int:
    return next((change.micro_steps for change in changes if isinstance(change, Accumulate)), 1)


def _step(table: NDArray[np.int64]) -> int:
    """Return the median over steps of the mean rank's step."""
    return round(float(median(table[:, :, WALL].mean(axis=0))))


def _figures(table: NDArray[Any]) -> dict[str, int]:
    """Return the median of each figure over the steps; *table* is steps × figures."""
    return {name: max(0, round(float(median(table[:, i])))) for i, name in enumerate(FIGURES)}


def _bounded(table: NDArray[np.int64], bound: float) -> NDArray[np.int64]:
    """Let no step be shorter than the steady state allows, unless it was; the rest is idle time."""
    wall = table[:, :, WALL].mean(axis=0)
    missing = max(0, round(bound - float(median(wall))))
    bounded = table.copy()
    bounded[:, :, [WALL, FIGURES.index("idle_ns")]] += missing
    return bounded


# A what-if for several values of one option, and which value is best.


class Point(msgspec.Struct, frozen=True):
    """The answer for one value."""

    value: float
    answer: WhatIf


class Sweep(msgspec.Struct, frozen=True):
    """The answers for several values of an option."""

    option: str
    """``bucket-cap-mb`` or ``world-size``."""
    points: tuple[Point, ...]

    @classmethod
    def of(cls, option: str, values: Sequence[float], answers: Sequence[WhatIf]) -> Sweep:
        """Put values and answers together, by value."""
        points = [Point(value, answer) for value, answer in zip(values, answers, strict=True)]
        return cls(option, tuple(sorted(points, key=lambda point: point.value)))

    @property
    def best(self) -> Point | None:
        """The shortest predicted step, of equals with the largest value.

        None for numbers of ranks: with more of them, a step has more samples.
        """
        if self.option == "world-size":
            return None
        return min(self.points, key=lambda point: (point.answer.predicted_step_ns, -point.value))

    @property
    def alike(self) -> bool:
        """Whether all predicted steps are equal up to what a prediction is uncertain by at least."""
        steps = [point.answer.predicted_step_ns for point in self.points]
        return max(steps) <= (1 + MIN_ERROR) * min(steps)

    @property
    def clearly_best(self) -> Point | None:
        """The best, where values make a difference."""
        return None if self.alike else self.best

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data, as ``dptrace whatif --json`` prints it."""
        return {
            "schema": 1,
            "swept": self.option,
            "best": None if self.best is None else self.best.value,
            "points": [{"value": point.value, **point.answer.to_dict()} for point in self.points],
        }
