"""A run: the recorded ranks of one job, their figures, and their analysis across ranks.

What else is asked of a run is a function that takes it, in this room, in replay, comparison, viewers and others;
:class:`dptrace.Run` has them as methods.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from dptrace.analysis.per_gpu.device import DeviceFigures, figures_of, step_windows
from dptrace.analysis.per_gpu.split import Split, unknown_figures
from dptrace.core.checks import rank_entries
from dptrace.core.columns import same
from dptrace.core.notes import SEVERAL_RUNS
from dptrace.core.table import frame, frame_of, listed_in_docstring
from dptrace.errors import DptraceError
from dptrace.run import columns, tables
from dptrace.timeline.model import Timeline
from dptrace.timeline.steps import with_usual_steps

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Self

    from dptrace.analysis.cross_rank.clocks import Shift
    from dptrace.analysis.cross_rank.pipeline_bubble import Pipeline
    from dptrace.analysis.kernels.summary import KernelSummary
    from dptrace.run.cross_rank import CrossRankAnalysis
    from dptrace.run.select import KeptDevice
    from dptrace.run.utilization import Utilization, Workload
    from dptrace.timeline.host_calls import Rereader, Result, SecondPass

SCHEMA = 2
"""Version of the JSON that :meth:`Run.to_dict` returns: the meaning of a name in it never changes."""


AnswerStore = Callable[[Sequence["DeviceFigures"], Sequence[object], type, Callable[[], Any]], Any]
"""Returns an answer about a run that was read from files, or computes it: `dptrace.load.answers.StoredAnswers`."""


@dataclass(frozen=True, repr=False, eq=False)
class Run:
    """The recording of one job: a timeline per GPU, sorted by rank and device.

    Two are equal if they have the same path, were read in the same way, and hold the same.
    """

    path: str
    """The path as the user gave it."""
    timelines: tuple[Timeline, ...]
    metadata: dict[str, Any] = field(default_factory=dict)
    """The contents of ``run.json``; empty for traces that dptrace did not record."""
    notes: tuple[str, ...] = ()
    """What was missing, dropped or repaired in the files, a sentence each; shown with every figure."""
    world_size: int = 0
    """Number of ranks in the job, as far as the files show; more than ``ranks`` where files are missing."""
    devices: tuple[DeviceFigures, ...] = field(default=())
    """Each timeline with its figures, in the same order; computed when they are not given."""
    figures_only: bool = False
    """Whether the timelines hold only communication; the figures are those of all intervals."""
    sources: Any = field(default=None, compare=False)
    """The files that the run was read from (``readers.discovery.Sources``); None for a run built in memory."""
    rereader: Rereader | None = field(default=None, compare=False)
    """Reads the files again, for :meth:`read_again`; None for a run built in memory."""
    answers: AnswerStore | None = field(default=None, compare=False)
    """Keeps answers about the run in the cache, for ``replay.findings.stored_answer``; None without one."""
    workload: Workload | None = None
    """Parameters, tokens and peak that the user gives; None for those of run.json."""
    selected_from: tuple[Run, tuple[KeptDevice, ...]] | None = field(default=None, compare=False)
    """The run that these ranks and steps are a part of; None for a whole run."""
    align: bool = True
    """Whether clocks that are off are corrected before ranks are compared, drawn or exported together."""

    def __post_init__(self) -> None:
        if not self.devices:
            object.__setattr__(self, "devices", tuple(map(figures_of, self.timelines)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Run):
            return NotImplemented
        # Two ways to write a path are one place.
        if Path(self.path).resolve() != Path(other.path).resolve():
            return False
        compared = [one.name for one in fields(Run) if one.compare and one.name not in ("timelines", "path")]
        return all(same(getattr(self, name), getattr(other, name)) for name in compared)

    def __hash__(self) -> int:
        return hash((Path(self.path).resolve(), self.world_size, self.ranks))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The numbers of the ranks that were read, in ascending order."""
        return tuple(dict.fromkeys(timeline.rank for timeline in self.timelines))

    @cached_property
    def ranks_of_several_gpus(self) -> frozenset[int]:
        """The numbers of the ranks that have more than one GPU."""
        return frozenset(rank for rank, gpus in Counter(t.rank for t in self.timelines).items() if gpus > 1)

    @cached_property
    def windows(self) -> tuple[tuple[str, ...], ...]:
        """The names of the steps of each window of the recording, in the order of time; most have one window."""
        return step_windows([self.devices[number] for number in with_usual_steps(self.timelines)])

    @cached_property
    def splits(self) -> tuple[Split, ...]:
        """The split of each timeline, in the same order."""
        return tuple(device.split for device in self.devices)

    @property
    def is_limited(self) -> bool:
        """Whether a figure or a cause of idle time is unknown on a rank."""
        return any(split.unknown for split in self.splits)

    def need(self, what: str, *names: str, despite: Collection[str] = ()) -> None:
        """Check that figures or causes of idle time are known on all ranks.

        Args:
            what: what is made of them, as the start of a sentence: ``What would change is``.
            despite: premises that may fail.

        Raises:
            DptraceError: one is not; the message says why.
        """
        for split in self.splits:
            unknown = unknown_figures([premise for premise in split.lacks if premise not in despite])
            for name in names:
                if why := unknown.get(name):
                    raise DptraceError(f"{self.path}: {what} unknown, because on rank {split.rank} {why}.")

    @property
    def on_cpu(self) -> bool:
        """Whether the run shows operators on CPUs instead of kernels on GPUs."""
        return all(timeline.on_cpu for timeline in self.timelines)

    @property
    def host_of(self) -> str:
        """Name of the device whose events are in the files and are not read; empty where all are."""
        return " and ".join(sorted({timeline.host_of for timeline in self.timelines if timeline.host_of}))

    @cached_property
    def cross_rank(self) -> CrossRankAnalysis:
        """The analysis across ranks: matched collectives, clocks, waits, stragglers."""
        return self.analyze_cross_rank()

    def analyze_cross_rank(self) -> CrossRankAnalysis:
        """Compute :attr:`cross_rank`."""
        from dptrace.run.cross_rank import analyze_cross_rank

        if self.selected_from is not None:
            from dptrace.run.select import restrict_analysis

            whole, kept = self.selected_from
            return restrict_analysis(whole.cross_rank, kept)
        return analyze_cross_rank(self.devices, self.world_size, self.metadata, self.align)

    @property
    def several_runs(self) -> tuple[str, ...]:
        """The notes that say that its files are not those of one run."""
        notes = (*self.notes, *self.cross_rank.notes)
        return tuple(note for note in notes if any(words in note for words in SEVERAL_RUNS))

    @cached_property
    def shifts(self) -> tuple[Shift, ...]:
        """What moves each GPU's times onto the clock that pictures and exports share."""
        from dptrace.analysis.cross_rank.clocks import Shift, shifts_of

        if len(self.timelines) < 2 or not self.align:
            return tuple(Shift(timeline.rank) for timeline in self.timelines)
        return shifts_of(self.timelines, self.cross_rank.clocks)

    def on_own_clocks(self) -> Self:
        """Return the run with every rank on its own clock, as recorded."""
        if not self.align:
            return self
        part = self.selected_from and (self.selected_from[0].on_own_clocks(), self.selected_from[1])
        return replace(self, align=False, selected_from=part)

    @cached_property
    def kernel_totals(self) -> KernelSummary:
        """The kernels by name, as :func:`~dptrace.run.kernels.kernel_summary` sums them up."""
        from dptrace.analysis.kernels.summary import summarize
        from dptrace.timeline.host_calls import OperatorCalls

        exposed = [device.exposed_ns for device in self.devices]
        return summarize(
            self.timelines, lambda _: OperatorCalls(), "kernel", only_steps=self.has_selected_steps, exposed=exposed
        )

    @cached_property
    def pipelines(self) -> tuple[Pipeline, ...]:
        """The pipelines that the ranks form, with the bubbles of their schedules; empty in most runs."""
        if not any(t.may_be_stage for t in self.timelines):
            return ()
        from dptrace.analysis.cross_rank.pipeline_bubble import pipelines

        return pipelines(self.devices, self.cross_rank.clocks)

    def _each_device(self) -> list[columns.OneDevice]:
        return [columns.OneDevice(*pair) for pair in zip(self.devices, self.cross_rank.exposed_waits, strict=True)]

    @listed_in_docstring(columns.STEPS)
    def steps(self) -> pd.DataFrame:
        """Return the split of each step: a row per rank, device and step."""
        return frame_of(columns.STEPS, self._each_device())

    @listed_in_docstring(columns.TOTALS)
    def totals(self) -> pd.DataFrame:
        """Return the split summed over all steps: a row per GPU."""
        return frame_of(columns.TOTALS, self._each_device())

    @listed_in_docstring(columns.IDLE)
    def idle_causes(self) -> pd.DataFrame:
        """Return why each GPU was idle: a row per rank, device and step."""
        return frame_of(columns.IDLE, self._each_device())

    def recompute_percent(self) -> float | None:
        """Return the share of backward that computes forward again, in percent; None without any.

        Activation checkpointing does that. The figure is a lower bound, see docs/definitions.md.
        """
        devices = [device for device in self.devices if "backward_ns" not in device.split.unknown]
        recomputed = sum(int(device.recompute_ns.sum()) for device in devices)
        backward = sum(int(device.split.figures["backward_ns"].sum()) for device in devices)
        return 100 * recomputed / backward if recomputed and backward else None

    @listed_in_docstring(columns.CALLS)
    def collectives(self) -> pd.DataFrame:
        """Return every collective on every GPU: a row per call."""
        return frame_of(columns.CALLS, self._each_device())

    @listed_in_docstring(columns.INTERVALS)
    def kernels(self) -> pd.DataFrame:
        """Return every device interval (kernel, copy, set) of every GPU: a row each.

        Raises:
            DptraceError: the run was opened with ``figures_only``.
        """
        if self.figures_only:
            raise DptraceError(
                f"{self.path}: opened with figures_only, which drops the intervals. Leave it out to list kernels."
            )
        return frame_of(columns.INTERVALS, self.timelines)

    @listed_in_docstring(columns.PIPELINES)
    def pipeline(self) -> pd.DataFrame:
        """Return what each rank computed of its pipeline's schedule, and the bubble: a row per rank and step."""
        return frame(tables.pipeline_rows(self.pipelines, self.timelines), columns.PIPELINES)

    @listed_in_docstring(columns.PIPELINE_ACTIONS)
    def pipeline_actions(self) -> pd.DataFrame:
        """Return each stage's forward and backward of each micro-batch, in the order of their starts: a row each."""
        return frame_of(columns.PIPELINE_ACTIONS, tables.action_sources(self.pipelines, self.timelines))

    @listed_in_docstring(columns.COLLECTIVE_RANKS)
    def matched_collectives(self) -> pd.DataFrame:
        """Return every collective across ranks: a row for each of its ranks.

        Transfer, wait, lateness and bandwidth are missing if not complete. Missing numbers are NaN in a float column.
        """
        return frame(tables.rank_rows(self.cross_rank.collectives()), columns.COLLECTIVE_RANKS)

    @listed_in_docstring(columns.CLOCKS)
    def clock_offsets(self) -> pd.DataFrame:
        """Return each rank's clock relative to the first rank's: a row per GPU."""
        return frame(self.cross_rank.clock_rows(), columns.CLOCKS)

    @listed_in_docstring(columns.STRAGGLERS)
    def stragglers(self) -> pd.DataFrame:
        """Return each collective at which a rank kept the others waiting: a row each."""
        return frame(self.cross_rank.straggler_rows(), columns.STRAGGLERS)

    def read_again(self, timeline: Timeline, reading: SecondPass[Result]) -> Result | None:
        """Return what the file of a timeline's rank holds beyond the figures; None where it can't be read again."""
        return None if self.rereader is None else self.rereader(timeline.path, reading)

    @property
    def has_selected_steps(self) -> bool:
        """Whether only some steps were selected; intervals of others are there only for overlaps with these."""
        kept = self.selected_from[1] if self.selected_from else ()
        return any(part.steps != slice(None) for part in kept)

    def select(
        self, ranks: str | int | Iterable[int] | None = None, steps: str | int | tuple[int, int] | None = None
    ) -> Self:
        """Return the part of the run with these ranks and steps.

        Args:
            ranks: numbers of the ranks to keep, or their text as on the command line, ``"0-3,8"``; None keeps all.
            steps: first and last number of the steps to keep, as in ``ProfilerStep#4``, ``"4:6"``, or one number;
                None keeps all.

        Raises:
            UsageError: these are no ranks or steps, or none is in the run; the message lists those of the run.
        """
        if ranks is None and steps is None:
            return self
        from dptrace.run.select import all_steps, numbers_of_ranks, ranks_note, selection_note, with_steps
        from dptrace.run.selection import ranks_of, steps_of

        run, notes = self, self.notes
        # Who waits for whom does not depend on what is looked at: the whole run stays the source.
        if steps is not None:
            first, last = steps_of(steps)
            notes = (*notes, selection_note(first, last))
            run = run._part(with_steps(run.path, run.devices, (first, last)), notes)
        if ranks is not None:
            numbers = numbers_of_ranks(run.path, run.devices, ranks_of(ranks))
            if len(numbers) < len(run.devices):
                notes = (ranks_note(sorted({run.devices[number].timeline.rank for number in numbers})), *notes)
            run = run._part(tuple(all_steps(number, run.devices[number]) for number in numbers), notes)
        return run

    def _part(self, kept: tuple[KeptDevice, ...], notes: tuple[str, ...]) -> Self:
        devices = tuple(part.device for part in kept)
        timelines = tuple(device.timeline for device in devices)
        return replace(self, timelines=timelines, devices=devices, notes=notes, selected_from=(self, kept))

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """The node of each timeline by ``run.json``, else by its trace's host, else by its file's name; or empty."""
        known = rank_entries(self.metadata)
        nodes = {entry.get("rank"): f"node {entry['node']}" for entry in known if isinstance(entry.get("node"), int)}
        hosts = {entry.get("rank"): str(entry["host"]) for entry in known if entry.get("host")}
        for found in (
            [nodes.get(timeline.rank, "") for timeline in self.timelines],
            [hosts.get(timeline.rank, "") for timeline in self.timelines],
            [timeline.host_name for timeline in self.timelines],
            [_node_in(PurePath(timeline.path).name) for timeline in self.timelines],
        ):
            if len(set(found)) > 1 and any(found):
                return tuple(found)
        return ("",) * len(self.timelines)

    @cached_property
    def efficiency(self) -> Utilization:
        """FLOP/s, MFU, HFU, samples and tokens per second, over all steps and of each."""
        from dptrace.run.utilization import utilization_of

        return utilization_of(self.devices, self.metadata, self.world_size, self.workload)

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain data, without findings."""
        from dptrace.run.cross_rank import mean_step

        across = self.cross_rank
        ranks = tables.rank_dicts(self.devices, across.exposed_waits, across.matches.groups, self.metadata)
        for row, node in zip(ranks, self.nodes, strict=True):
            row |= {"node": node} if node else {}
        staged = self.pipelines or any(len(timeline.actions) for timeline in self.timelines)
        return {
            "schema": SCHEMA,
            "run": self.path,
            "world_size": self.world_size,
            "windows": [[*names] for names in self.windows],
            "mean_step": None if (step := mean_step(across)) is None else step.to_dict(),
            "ranks": ranks,
            "notes": [*self.notes, *across.notes],
            **({"pipelines": tables.pipeline_dicts(self.pipelines, self.timelines)} if staged else {}),
            **({"utilization": self.efficiency.to_dict()} if self.efficiency.known else {}),
            **across.to_dict(),
        }

    def __repr__(self) -> str:
        return tables.one_line(self.path, self.ranks, self.world_size, self.splits)

    def _repr_html_(self) -> str:
        """Return a small table for notebooks: the split of each GPU, mean per step."""
        return tables.mean_split_html(repr(self), self.devices, self.cross_rank.exposed_waits)


def whole_run(run: Run) -> Run:
    """Return the run that ranks and steps were selected from."""
    while run.selected_from is not None:
        run = run.selected_from[0]
    return run


_NODE_IN_NAME = re.compile(r"^(?:(.+?)_\d+\.|.*?((?:node|host)[-_]?\d+))", re.IGNORECASE)
"""The host in a file's name, as torch's ``tensorboard_trace_handler`` writes it (``HOST_PID.…``), or as people do."""


def _node_in(name: str) -> str:
    match = _NODE_IN_NAME.match(name)
    return (match[1] or match[2]) if match else ""
