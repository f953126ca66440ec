"""A run: the recorded ranks of one job, their figures, and their analysis across ranks.

What else is asked of a run is a function that takes it, in this room, in replay, comparison, viewers and others;
:class:`dptrace.Run` has them as methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from dptrace.analysis.per_gpu.device import DeviceFigures, figures_of
from dptrace.analysis.per_gpu.split import Split
from dptrace.errors import DptraceError
from dptrace.run import tables
from dptrace.timeline.model import Timeline

if TYPE_CHECKING:
    import pandas as pd
    from typing_extensions import Self

    from dptrace.analysis.cross_rank.pipeline_bubble import Pipeline
    from dptrace.analysis.findings.finding import Finding
    from dptrace.run.cross_rank import CrossRankAnalysis
    from dptrace.run.select import KeptDevice
    from dptrace.run.utilization import Utilization, Workload
    from dptrace.timeline.host_calls import Rereader, Result, SecondPass

__all__ = ["SCHEMA", "Run"]

SCHEMA = 1
"""Version of the JSON that :meth:`Run.to_dict` returns: the meaning of a name in it never changes."""


@dataclass(frozen=True, repr=False)
class Run:
    """The recording of one job: a timeline per GPU, sorted by rank and device."""

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
    """The files that the run was read from (``readers.sources.discovery.Sources``); None for a run built in memory."""
    rereader: Rereader | None = field(default=None, compare=False)
    """Reads the files again, for :meth:`read_again`; None for a run built in memory."""
    workload: Workload | None = None
    """Parameters, tokens and peak that the user gives; None for those of run.json."""
    gains: Callable[..., tuple[Finding, ...]] | None = field(default=None, compare=False)
    """Computes what a step would gain without each finding of a run; None where findings do not say it."""
    selected_from: tuple[Run, tuple[KeptDevice, ...]] | None = field(default=None, compare=False)
    """The run that these ranks and steps are a part of; None for a whole run."""

    def __post_init__(self) -> None:
        if not self.devices:
            object.__setattr__(self, "devices", tuple(map(figures_of, self.timelines)))

    @property
    def ranks(self) -> tuple[int, ...]:
        """The numbers of the ranks that were read, in ascending order."""
        return tuple(dict.fromkeys(timeline.rank for timeline in self.timelines))

    @property
    def splits(self) -> tuple[Split, ...]:
        """The split of each timeline, in the same order."""
        return tuple(device.split for device in self.devices)

    @property
    def on_cpu(self) -> bool:
        """Whether the run shows operators on CPUs instead of kernels on GPUs."""
        return all(timeline.on_cpu for timeline in self.timelines)

    @cached_property
    def cross_rank(self) -> CrossRankAnalysis:
        """The analysis across ranks: matched collectives, clocks, stragglers, findings."""
        across = self.analyze_cross_rank()
        if self.gains is None or all(finding.gain is not None for finding in across.findings):
            return across
        # Findings on some of the steps are new. They are about this run, whose own analysis is not there yet.
        plain = replace(self, gains=None)
        vars(plain)["cross_rank"] = across
        return msgspec.structs.replace(across, findings=self.gains(plain, across.findings))

    def analyze_cross_rank(self, align: bool = True) -> CrossRankAnalysis:
        """Compute :attr:`cross_rank`; without *align*, clocks that are off are not corrected."""
        from dptrace.run.cross_rank import analyze_cross_rank

        if self.selected_from is not None:
            from dptrace.run.select import restrict_analysis

            whole, kept = self.selected_from
            return restrict_analysis(
                whole.cross_rank if align else whole.analyze_cross_rank(align), kept, self.metadata
            )
        return analyze_cross_rank(self.devices, self.world_size, self.metadata, align)

    @cached_property
    def pipelines(self) -> tuple[Pipeline, ...]:
        """The pipelines that the ranks form, with the bubbles of their schedules; empty in most runs."""
        return self._pipelines(self.cross_rank) if any(len(t.actions) for t in self.timelines) else ()

    def _pipelines(self, across: CrossRankAnalysis) -> tuple[Pipeline, ...]:
        from dptrace.analysis.cross_rank.pipeline_bubble import pipelines

        return pipelines(self.devices, across.clocks)

    def steps(self) -> pd.DataFrame:
        """Return the split of each step: a row per rank, device and step.

        Columns:
            rank, device (int): rank number, and index of its GPU; device is -1 for a CPU.
            step (str): name of the step, such as ``ProfilerStep#4``.
            forward_ns, backward_ns, optimizer_ns, other_ns (int, ns): compute by phase.
            exposed_comm_ns (int, ns): communication that no compute hides.
            overlapped_comm_ns (int, ns): communication under compute.
            exposed_memory_ns (int, ns): copies and sets under neither compute nor communication.
            idle_ns (int, ns): no work on the GPU.
            wall_ns (int, ns): length of the step: the sum of the parts above except overlapped_comm_ns.
            exposed_wait_ns (Int64, ns): part of exposed_comm_ns spent waiting for later ranks; <NA> where unknown.
            exposed_unmatched_ns (int, ns): part of exposed_comm_ns in collectives that lack a rank.
        """
        return tables.step_frame(self.devices, self.cross_rank.exposed_waits)

    def totals(self) -> pd.DataFrame:
        """Return the split summed over all steps: a row per GPU.

        Columns:
            rank, device (int): as in :meth:`steps`.
            forward_ns … exposed_unmatched_ns: as in :meth:`steps`, summed.
            overlap_percent (float, %): overlapped / (overlapped + exposed) communication; NaN without communication.
        """
        return tables.total_frame(self.devices, self.cross_rank.exposed_waits)

    def idle_causes(self) -> pd.DataFrame:
        """Return why each GPU was idle: a row per rank, device and step.

        Columns:
            rank, device (int): as in :meth:`steps`.
            step (str): name of the step.
            data_loading_ns, allocator_ns, synchronizing_ns, host_bound_ns (int, ns): the host launched late, by cause.
            launch_latency_ns, waiting_ns, bubble_ns (int, ns): idle although work was launched in time, by cause.
            idle_ns (int, ns): idle time of the step, the sum of the causes.
        """
        return tables.idle_frame(self.devices)

    def recompute_percent(self) -> float | None:
        """Return the share of backward that computes forward again, in percent; None without any.

        Activation checkpointing does that. The figure is a lower bound, see docs/definitions.md.
        """
        recomputed = sum(int(device.recompute_ns.sum()) for device in self.devices)
        backward = sum(int(device.split.figures["backward_ns"].sum()) for device in self.devices)
        return 100 * recomputed / backward if recomputed and backward else None

    def collectives(self) -> pd.DataFrame:
        """Return every collective on every GPU: a row per call.

        Columns:
            rank, device (int): as in :meth:`steps`.
            step (str or None): name of the step; None outside all steps.
            kind (str): ``all_reduce``, ``all_gather`` …
            bytes (int or None, bytes): message size; <NA> where unknown.
            dtype, group (str): data type and process group; empty where unknown.
            group_size (int): number of ranks in the group; 0 where unknown.
            seq (int): sequence number in the group; -1 where unknown.
            phase (str): phase that launched it: ``forward``, ``backward``, ``optimizer`` or ``other``.
            start_ns, end_ns (int, ns): on the rank's own clock.
            exposed_ns, overlapped_ns (int, ns): its time without and under compute.
            name, label (str): the kernel's name, and the label of the bucket or layer it serves; empty for no label.
            exposed_wait_ns (Int64, ns): part of exposed_ns spent waiting for later ranks; <NA> where unknown.
            waits_for (Int64): rank that caused more than half of the wait; <NA> where none did.
        """
        return tables.collective_frame(self.devices, self.cross_rank.exposed_waits)

    def kernels(self) -> pd.DataFrame:
        """Return every device interval (kernel, copy, set) of every GPU: a row each.

        Columns:
            rank, device (int): as in :meth:`steps`.
            name (str): name of the kernel, or of the operator on a CPU.
            kind (str): ``compute``, ``communication`` or ``memory``.
            phase (str): ``forward``, ``backward``, ``optimizer`` or ``other``.
            step (str or None): name of the step; None outside all steps.
            lane (int): stream of a GPU, or thread of a CPU.
            start_ns, end_ns (int, ns): on the rank's own clock.

        Raises:
            DptraceError: the run was opened with ``figures_only``.
        """
        if self.figures_only:
            raise DptraceError(
                f"{self.path}: opened with figures_only, which drops the intervals. Leave it out to list kernels."
            )
        return tables.kernel_frame(self.timelines)

    def pipeline(self) -> pd.DataFrame:
        """Return what each rank computed of its pipeline's schedule, and the bubble: a row per rank and step.

        Columns:
            pipeline (int): number of the pipeline, from 0.
            schedule (str): ``gpipe``, ``1f1b`` …, from the order of the actions.
            micro_batches, rank, device (int): micro-batches of a step; rank and device as in :meth:`steps`.
            stages (tuple of int): numbers of the rank's stages.
            step (str): name of the step.
            busy_ns (int, ns): compute of the rank's actions.
            own_span_ns (int, ns): from the start of the rank's first action to the end of its last.
            span_ns (int, ns): from the start of the pipeline's first action to the end of its last.
            bubble_percent, pipeline_bubble_percent (float, %): part of span_ns without compute: own, all ranks'.
            formula_percent (float or None, %): bubble that the schedule's formula predicts; None without a formula.
        """
        from dptrace.analysis.cross_rank.pipeline_bubble import COLUMNS, rows

        return tables.frame(rows(self.pipelines, self.timelines), COLUMNS)

    def pipeline_actions(self) -> pd.DataFrame:
        """Return each stage's forward and backward of each micro-batch, in the order of their starts: a row each.

        Columns:
            pipeline, rank, device (int): as in :meth:`pipeline`.
            step (str or None): name of the step; None outside all steps.
            stage, micro_batch (int): numbers, from 0.
            action (str): ``F`` (forward), ``B`` (backward), ``I`` and ``W`` (backward of inputs and of weights).
            start_ns, end_ns (int, ns): on the rank's own clock.
            busy_ns (int, ns): compute within the action.
        """
        from dptrace.analysis.cross_rank.pipeline_bubble import ACTION_COLUMNS, action_rows

        return tables.frame(action_rows(self.pipelines, self.timelines), ACTION_COLUMNS)

    def matched_collectives(self) -> pd.DataFrame:
        """Return every collective across ranks: a row for each of its ranks.

        Columns:
            collective (int): number of the collective; its rows share it.
            kind (str): ``all_reduce``, ``all_gather`` …
            name (str): ``bucket 0``, ``FSDP::all_gather (layers.3)`` …; empty without a name.
            group (str): process group; empty where unknown.
            seq (int): sequence number in the group; -1 where unknown.
            bytes (int or None, bytes): message size; <NA> where unknown.
            dtype (str): data type; empty where unknown.
            step (str or None): name of the step; None outside all steps.
            phase (str): phase that launched it.
            complete (bool): whether all ranks of the group are in the run.
            transfer_ns (int or None, ns): the shortest duration among the ranks; missing if not complete.
            algbw_gbps, busbw_gbps (float or None, GB/s): algorithm and bus bandwidth; missing where unknown.
            last_rank (int or None): rank that arrived last; missing where unknown.
            rank, device (int): as in :meth:`steps`.
            start_ns, end_ns (int, ns): on the rank's own clock.
            exposed_ns, overlapped_ns (int, ns): its time without and under compute on this rank.
            wait_ns (int or None, ns): its duration on this rank beyond transfer_ns; missing for broadcast, messages.
            late_ns (int or None, ns): how much later than the first rank it arrived; missing within clock uncertainty.
            exposed_wait_ns … waits_for: as in :meth:`collectives`.

        Transfer, wait, lateness and bandwidth are missing if not complete. Missing numbers are NaN in a float column.
        """
        return tables.matched_frame(self.cross_rank.collectives())

    def clock_offsets(self) -> pd.DataFrame:
        """Return each rank's clock relative to the first rank's: a row per GPU.

        Columns:
            rank, device (int): as in :meth:`steps`.
            reference_rank (int): the rank that the clock is compared with.
            offset_ns, at_ns (int or None, ns): how far its clock is ahead, and when; NaN where nothing connects it.
            uncertainty_ns (int or None, ns): the offset's error is at most this; NaN as for offset_ns.
            drift_ppm (float, ppm): change of the offset from at_ns on; docs/reference/json.md has the formula.
            corrected (bool): whether comparisons across ranks correct this clock.
            collectives (int): number of collectives that the estimate uses.
        """
        return tables.frame(self.cross_rank.clock_rows(), tables.CLOCK_COLUMNS)

    def stragglers(self) -> pd.DataFrame:
        """Return each collective at which a rank kept the others waiting: a row each.

        Columns:
            rank, device (int): the straggler; as in :meth:`steps`.
            step (str or None): name of the step; None outside all steps.
            collective (int): number of the collective in :meth:`matched_collectives`.
            kind (str): ``all_reduce``, ``all_gather`` …
            late_ns (int, ns): how much later than the median early rank it arrived.
            cost_ns (int, ns): exposed wait that it caused, mean of the early ranks; each delay counts once.
            cause (str): why it was late: ``compute``, ``allocator``, ``data_loading`` …
            delay (int): number of the delay behind it, which later rows may share.
            what, where (str): the call, operator, kernel or annotation, and what encloses it.
        """
        return tables.frame(self.cross_rank.straggler_rows(), tables.STRAGGLER_COLUMNS)

    def findings(self) -> pd.DataFrame:
        """Return the findings, most expensive first: a row each.

        Columns:
            kind (str): ``straggler``, ``exposed_comm``, ``host_bound`` …
            text, advice (str): what was found, with its numbers, and what to do about it.
            cost_ns (int, ns): how much shorter a step would be without it.
            share (float): cost_ns as a share of the step, from 0 to 1.
            evidence (dict): where to look: step, rank, collective.

        Of a run :meth:`dptrace.Run.with_gains`, also ``gain_ns`` and the other columns of a gain.
        """
        return tables.finding_frame(self.cross_rank.findings)

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
        from dptrace.run.select import all_steps, numbers_of_ranks, selection_note, with_steps
        from dptrace.run.selection import ranks_of, steps_of

        run, notes = self, self.notes
        # Who waits for whom does not depend on what is looked at: the whole run stays the source.
        if steps is not None:
            first, last = steps_of(steps)
            notes = (*notes, selection_note(first, last))
            run = run._part(with_steps(run.path, run.devices, (first, last)), notes)
        if ranks is not None:
            numbers = numbers_of_ranks(run.path, run.devices, ranks_of(ranks))
            run = run._part(tuple(all_steps(number, run.devices[number]) for number in numbers), notes)
        return run

    def _part(self, kept: tuple[KeptDevice, ...], notes: tuple[str, ...]) -> Self:
        devices = tuple(part.device for part in kept)
        timelines = tuple(device.timeline for device in devices)
        return replace(self, timelines=timelines, devices=devices, notes=notes, selected_from=(self, kept))

    @cached_property
    def efficiency(self) -> Utilization:
        """FLOP/s, MFU, HFU, samples and tokens per second, over all steps and of each."""
        from dptrace.run.utilization import utilization_of

        return utilization_of(self.devices, self.metadata, self.world_size, self.workload)

    def to_dict(self, align: bool = True) -> dict[str, Any]:
        """Return the figures as plain data, as ``dptrace analyze --json`` prints them.

        Args:
            align: correct clocks that are off before ranks are compared.
        """
        from dptrace.run.mean_step import mean_step

        across = self.cross_rank if align else self.analyze_cross_rank(align=False)
        staged = any(len(timeline.actions) for timeline in self.timelines)
        return {
            "schema": SCHEMA,
            "run": self.path,
            "world_size": self.world_size,
            "mean_step": None if (step := mean_step(across)) is None else step.to_dict(),
            "ranks": tables.rank_dicts(self.devices, across.exposed_waits, across.matches.groups, self.metadata),
            "notes": [*self.notes, *across.notes],
            **({"pipelines": tables.pipeline_dicts(self._pipelines(across), self.timelines)} if staged else {}),
            **({"utilization": self.efficiency.to_dict()} if self.efficiency.known else {}),
            **across.to_dict(),
        }

    def __repr__(self) -> str:
        return tables.one_line(self.path, self.ranks, self.world_size, self.splits)

    def _repr_html_(self) -> str:
        """Return a small table for notebooks: the split of each GPU, mean per step."""
        return tables.mean_split_html(repr(self), self.devices, self.cross_rank.exposed_waits)
