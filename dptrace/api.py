"""The public functions, and the run that they take; each imports what it needs when it is called."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from dptrace.core.files import atomic_write
from dptrace.core.table import frame, frame_of, html_table, listed_in_docstring, typed
from dptrace.errors import DptraceError, UsageError
from dptrace.load.options import ReadOptions
from dptrace.run import columns
from dptrace.run.run import Run as RunData

if TYPE_CHECKING:
    import pandas as pd
    from bokeh.models import Column
    from typing_extensions import Unpack

    from dptrace.comparison.compare import Comparison as Comparison
    from dptrace.comparison.history import History as History
    from dptrace.model.planning.describe import Description
    from dptrace.replay.critical_path import CriticalPath as CriticalPath
    from dptrace.replay.options import Options as Options
    from dptrace.replay.whatif import Replay as Replay
    from dptrace.replay.whatif import WhatIf as WhatIf
    from dptrace.viewers.pages.explain import Explained as Explained
    from dptrace.viewers.pages.view import NotebookPage as NotebookPage
    from dptrace.viewers.views.names import ViewName

__all__ = [
    "Run",
    "advise",
    "compare",
    "critical_path",
    "explain",
    "export_trace",
    "figure",
    "figure_svg",
    "hta_analysis",
    "memory",
    "open",
    "predict",
    "predict_message",
    "show",
    "whatif",
]

AnyRun = TypeVar("AnyRun", bound=RunData)


# Messages name options as the command line does; whoever calls a function typed a keyword.

_Function = TypeVar("_Function", bound=Callable[..., Any])
_COMMAND = r"(?:dptrace|nsys) [a-z]\S*(?: [^.;`]*)?"
_OPTION = re.compile(rf"({_COMMAND})|(?<![\w-])--([a-z][a-z-]*[a-z])(?: (?=\S*\d|[^\s:]+:|[A-Z]+\b))?")


def speaks_python(**renamed: str) -> Callable[[_Function], _Function]:
    """Let errors of a public function name its keywords: ``bucket_cap_mb=0`` for ``--bucket-cap-mb 0``.

    Args:
        renamed: the keywords that are not called as the option, by the option's name.
    """

    def wrap(function: _Function) -> _Function:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except DptraceError as error:
                error.args = (in_keywords(str(error), renamed),)
                raise

        return cast(_Function, call)

    return wrap


def in_keywords(text: str, renamed: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return a message with keywords in place of options; a command in it stays as it is to be typed.

    >>> in_keywords("--steps [99]: expected the first and the last number.")
    'steps=[99]: expected the first and the last number.'
    """

    def keyword(found: re.Match[str]) -> str:
        if found[1]:
            return found[1]
        name = found[2].replace("-", "_")
        return renamed.get(name, name) + ("=" if found[0].endswith(" ") else "")

    return _OPTION.sub(keyword, text)


@speaks_python(no_cache="cache=False", comm_pattern="comm_patterns")
def open(
    *paths: str | PathLike[str],
    comm_patterns: str | Sequence[str] = (),
    phase_labels: str | Sequence[str] = (),
    step_range: str = "",
    strict: bool = False,
    cache: bool = True,
    jobs: int | None = None,
    dask: str | None = None,
    figures_only: bool = False,
    ignore: Iterable[int] = (),
    window: int | None = None,
    align: bool = True,
) -> Run:
    """Read a run: a run folder, a trace file, several files, a folder or a glob of traces, or URLs of them.

    Args:
        paths: what to read. All paths together are one run, with one file per rank.
        comm_patterns: regular expressions for further communication kernels, or one, searched in kernel names without
            regard to case.
        phase_labels: ``"REGEX=backward"``, or several: the phase of work that is launched under labels with a match,
            without regard to case; for labels of schedules that dptrace does not know.
        step_range: name of the ranges that are steps, with or without a number at its end: NVTX's, or those of
            ``record_function``; empty for the steps that ``torch.profiler`` marks.
        strict: raise an error for data that is truncated, damaged or impossible, instead of adding a note to the run.
        cache: use and write the cache of parsed files.
        jobs: number of processes that read; None chooses.
        dask: address of a Dask scheduler whose workers read the files, or ``"local"``.
        figures_only: drop all intervals but communication once the figures are computed. This keeps runs of thousands
            of ranks small; pictures and :meth:`Run.kernels` need the intervals.
        ignore: ranks to leave out, as if they had not been recorded.
        window: of several windows of each process, which a schedule that repeats writes, the number of one, from 1 in
            the order of time; None reads all, as one run of many steps.
        align: correct clocks that are off before ranks are compared, drawn or exported.

    Raises:
        DptraceError: the message names the file, what is wrong with it, and what to do.
        TypeError: a path is no path.
    """
    from dptrace.load.open import open_run
    from dptrace.readers.discovery import path_text
    from dptrace.run.selection import ranks_of

    if any(isinstance(path, list | tuple | set) for path in paths):
        raise UsageError("dptrace.open takes each path as its own argument: dptrace.open(*paths).")
    for path in paths:
        if not isinstance(path, str | PathLike):
            raise TypeError(f"dptrace.open takes paths, as text or os.PathLike, not {path!r}.")
    if window is not None and (isinstance(window, bool) or not isinstance(window, Integral)):
        raise UsageError(f"window={window!r}: the number of a window is an integer from 1.")
    patterns = (comm_patterns,) if isinstance(comm_patterns, str) else tuple(comm_patterns)
    rules = (phase_labels,) if isinstance(phase_labels, str) else tuple(phase_labels)
    read_options = ReadOptions(
        *(patterns, rules, step_range, strict, cache, jobs, dask, figures_only),
        ignore=tuple(sorted(ranks_of(ignore))),
        window=None if window is None else int(window),
        align=align,
    )
    return Run(**vars(open_run([path_text(path) for path in paths], read_options)))


def compare(before: RunData | Sequence[RunData], after: RunData | Sequence[RunData]) -> Comparison:
    """Compare two runs: what changed from *before* (A) to *after* (B), and whether each change is beyond noise.

    Args:
        before: the run before the change, or several recordings of it. Several show how much recordings of one job
            differ; with one alone, a change of the machine looks like a change of the code.
        after: the run after the change, or several recordings of it.

    Raises:
        UsageError: a side is a path, has no recording, or one recording is given twice among several.
        DptraceError: the recordings of a side have no rank in common.
    """
    from dptrace.comparison.compare import compare

    return compare(_all_opened(before), _all_opened(after))


@speaks_python()
def save_baseline(path: str | PathLike[str], runs: RunData | Sequence[RunData], *, force: bool = False) -> Path:
    """Write the figures of recordings into one small JSON file, as ``dptrace baseline save`` does; return its path.

    Args:
        runs: a recording, or several of the same code, which show how such recordings differ.
        force: overwrite an existing file.

    Raises:
        UsageError: the file exists and *force* is not set, or its folder is missing.
        DptraceError: a recording has no steps, or the recordings have different ranks.
    """
    from dptrace.comparison import baseline
    from dptrace.core.files import check_output

    recordings = _all_opened(runs)
    check_output(Path(path), force)
    baseline.save(Path(path), recordings)
    return Path(path)


def open_baseline(path: str | PathLike[str]) -> list[RunData]:
    """Read the recordings of a baseline, for :func:`dptrace.compare`; they have figures of steps and no intervals.

    Raises:
        DptraceError: the file can't be read, or is no baseline.
    """
    from dptrace.comparison import baseline

    return [*baseline.read(Path(path)).runs(Path(path))]


def history(runs: RunData | Sequence[RunData]) -> History:
    """Put runs in the order of time, and find from which run on a step or a part of it has another level.

    Runs of different scripts or modes, models, GPUs or numbers of ranks are series of their own.

    Args:
        runs: the runs, also of :func:`dptrace.open_baseline`; ``figures_only`` suffices for them.

    Raises:
        UsageError: there is none, or one of them is a path.
    """
    from dptrace.comparison.history import history

    return history(_all_opened(runs))


@speaks_python(kernel="kernels")
def whatif(run: RunData, **options: Unpack[Options]) -> WhatIf:
    """Predict what a step would take if something were different, by replaying the run; changes apply together.

    Args:
        run: the run to replay; without any change, it is replayed as recorded.
        compute: factor by which compute is faster.
        bandwidth: factor by which links are faster (``2`` or ``"2x"``), or what they move as text (``"25GBps"``); the
            latency of a collective stays, where its sizes show it.
        kernels: by regular expression, the share of their time that kernels with a matching name take.
        straggler: by rank, how late its host is in each step, in ns.
        no_straggler: between two collectives, no rank spends longer on its own work than the median one.
        no_host_delay: calls, and what the host does between them, take no time.
        perfect_overlap: nothing waits for a collective.
        latency: ``"0.5x"`` of what it is, or ``"5us"`` for each link.
        link: ``"nvlink4"``, ``"5us:12.5GB/s"``, or a file of ``dptrace links -o``.
        compress: ``"fp16"`` for all messages, ``"all_to_all=fp16"`` for those of a kind.
        world_size: number of data-parallel ranks; for a run of one rank, add ``link``.
        schedule: ``"naive"``, ``"interleaved"``, ``"ddp"`` or ``"overlap-optimizer"``.
        bucket_cap_mb: size of DDP's buckets in MiB.
        accumulate: micro-steps for each step of the optimizer.
        fuse: a regular expression; neighboring kernels with matching names are one.
        cuda_graphs: the kernels of a step are launched at once.
        no_recompute: backward recomputes nothing of forward.
        all_ranks: replay every rank; otherwise, of more than 64, some are replayed for all that are like them.

    Returns:
        The step as measured, replayed and predicted in ns, its range, its parts and ranks, the predicted run, and the
        reasons to doubt the answer.

    Raises:
        UsageError: a factor is not above 0, no kernel matches, or a rank is not in the run.
        DptraceError: a file can't be read again, or the run was opened with ``figures_only``.
    """
    _opened(run)
    return replay_with(run, options)


def replay_with(run: RunData, options: Options) -> WhatIf:
    """Answer a what-if as :func:`whatif`; errors name the options of ``dptrace whatif``."""
    from dptrace.bench.links import with_measured_link
    from dptrace.replay.changes import changes_of
    from dptrace.replay.whatif import whatif

    return whatif(run, changes_of(**with_measured_link(options)), bool(options.get("all_ranks")))


def stage_whatif(path: str | Path) -> dict[str, Any]:
    """Return how long a step of a timeline of pipeline stages takes ideally, and what explains the rest.

    Args:
        path: a file as StragglerAnalysis writes it: one event for each operation of a worker.

    Returns:
        What ``dptrace whatif TIMELINE --json`` prints.

    Raises:
        TraceError: the file is missing, empty, damaged or no such timeline, or has an order that can't be replayed.
    """
    from dptrace.replay.stage_timeline import stage_whatif

    return stage_whatif(path)


def critical_path(run: RunData, step: str | int | None = None, all_ranks: bool = False) -> CriticalPath:
    """Find the chain of kernels, collectives, launches and host gaps that sets the length of a step, across ranks.

    Args:
        run: the run, with all its ranks and steps.
        step: name of the step, such as ``ProfilerStep#4``, or its number; by default, the one of median length.
        all_ranks: replay every rank; otherwise, of more than 64, some are replayed for all that are like them.

    Returns:
        The chain, its time by kind, rank and operator, what 10 % less time of each would gain by replay, and the
        slack of every kernel of the step.

    Raises:
        UsageError: no step has that name.
        DptraceError: a file can't be read again, or the run was opened with ``figures_only``.
    """
    from dptrace.replay.critical_path import critical_path
    from dptrace.replay.whatif import replay_of, replay_of_some

    _opened(run)
    return critical_path(replay_of(run) if all_ranks else replay_of_some(run), step)


def show(
    run: RunData, view: ViewName = "gantt", height: int | None = None, critical_path: CriticalPath | None = None
) -> NotebookPage:
    """Show a run in a notebook, as ``dptrace view`` shows it in a browser.

    ``save(path)`` on the result writes the page.

    Args:
        run: the run to show.
        view: one of the views that ``dptrace view --view list`` prints.
        height: height of the frame in the notebook, in pixels; by default what the view needs, within limits.
        critical_path: the path of a step, to be drawn on the Gantt chart.

    Raises:
        UsageError: no view has that name, or it does not draw critical paths.
        DptraceError: the run has nothing to draw, or too much for one page.
    """
    from dptrace.viewers.pages.view import show

    _opened(run)
    return show(run, view, height, critical_path)


def _opened(run: object) -> None:
    """Raise an error for anything but a run: most often, a path."""
    if not isinstance(run, RunData):
        raise UsageError(f"{run!r:.80}: is no run; open the path first: dptrace.open(path).")


def _all_opened(runs: object) -> list[RunData]:
    """Return one run or several as a list, after the same check of each."""
    several: list[Any] = list(runs) if isinstance(runs, Iterable) and not isinstance(runs, str) else [runs]
    for run in several:
        _opened(run)
    return several


def figure(run: RunData, *, every_rank: bool = False) -> Column:
    """Draw the Gantt chart of a run as a Bokeh layout, for a notebook, Panel, ``bokeh serve`` or a page of your own.

    Above the chart are the first findings, with a button that shows the place of each, and an overview; below it is the
    split of what is shown. The legend hides categories. :func:`dptrace.show` shows the page of ``dptrace view``, which
    has more and needs a frame.

    Args:
        run: the run to draw; ``run.select(ranks=..., steps=...)`` chooses a part. Of more than 40,000 intervals, the
            short ones are drawn as sums.
        every_rank: draw all ranks; by default, of more than eight only the most notable.

    Returns:
        A ``bokeh.models.Column``: each call makes new models, which belong to one document.

    Raises:
        DptraceError: the run has no step, or was opened with ``figures_only``.
    """
    from dptrace.viewers.pages.gantt_layout import gantt_layout

    _opened(run)
    return gantt_layout(run, every_rank)


@speaks_python(figure_width="width")
def figure_svg(
    run: RunData, *, width: int = 640, annotate: bool = False, every_step: bool = False, every_rank: bool = False
) -> str:
    """Draw the Gantt chart of one step as SVG, for papers and slides: rows, axis and legend in large type.

    Args:
        run: the run to draw; ``run.select(ranks=..., steps=...)`` chooses a part.
        width: width of the figure in pixels; the narrower, the larger its type when scaled to a column.
        annotate: number the most expensive findings in the chart and write them below it.
        every_step: draw all steps instead of the one of median length.
        every_rank: draw all ranks; by default, of more than eight only the most notable.
    """
    from dptrace.viewers.pages.gantt_svg import figure_svg

    _opened(run)
    return figure_svg(run, every_step, every_rank, width, annotate)


@speaks_python()
def export_trace(run: RunData, path: str | PathLike[str], *, align: bool = True, force: bool = False) -> Path:
    """Write all ranks of a run to one trace for Perfetto or Chrome; the suffix of *path* chooses the format.

    Args:
        run: the run, opened with its intervals.
        path: file to write: ``.pftrace``, ``.json.gz`` or ``.json``.
        align: put the ranks on one clock where their offsets are known.
        force: overwrite the file.

    Returns:
        The path that was written.

    Raises:
        UsageError: the suffix is not one of these, the file exists and *force* is not given, or the run was read from
            it.
        DptraceError: the run was opened with ``figures_only``, or the file cannot be written.
    """
    from dptrace.core.files import check_output, refuse_overwriting
    from dptrace.export.formats import format_of, write_trace

    _opened(run)
    target = Path(path)
    suffix = format_of(target)
    check_output(target, force)
    if run.sources is not None:
        refuse_overwriting([target], run.sources.local_files())
    if run.figures_only:
        raise DptraceError(f"{run.path}: opened with figures_only, which drops the intervals. Leave it out to export.")
    with atomic_write(target) as temporary:
        write_trace(run if align else run.on_own_clocks(), temporary, suffix)
    return target


@speaks_python(alpha="alpha_us", bandwidth="bandwidth_gbps", bytes="size_bytes")
def explain(
    name: str,
    ranks: int = 4,
    *,
    size_bytes: float = 100e6,
    link: str | None = None,
    alpha_us: float | None = None,
    bandwidth_gbps: float | None = None,
    **options: float,
) -> Explained:
    """Explain a collective or a way to train in parallel, step by step, by a simulation on NumPy arrays.

    Args:
        name: one of the names that ``dptrace explain --help`` lists, such as ``"ring"`` or ``"1f1b"``.
        ranks: from 2 to 32.
        size_bytes: n, the size of the message that the cost is computed for.
        link: ``"nvlink4"``, or ``"nvlink4,ib-ndr"`` for the links within and between nodes.
        alpha_us, bandwidth_gbps: latency in µs and bandwidth in GB/s of a link, instead of *link*.
        options: those of the name: ``node_size``, ``micro_batches``, ``chunks``, ``layers``, ``bucket_bytes``,
            ``tokens``, ``top_k``, ``capacity_factor``, ``stage``.

    Raises:
        UsageError: a name or an option is unknown, or a value is out of range.
    """
    from dptrace.simulate.catalog import explain, settings_of
    from dptrace.viewers.pages.explain import Explained

    settings = settings_of(name, ranks, size_bytes, link, alpha_us, bandwidth_gbps, options)
    return Explained(explain(name, settings))


def hta_analysis(run: RunData, include_last_profiler_step: bool = False) -> Any:
    """Return Holistic Trace Analysis's ``TraceAnalysis`` of the run's files, with all its methods.

    Args:
        run: a run that was read from files.
        include_last_profiler_step: keep the last step, which HTA drops by default.

    Raises:
        MissingExtraError: HTA is not installed.
        DptraceError: the run was not read from files, or one of them has changed since.
    """
    from dptrace.hta.trace_analysis import hta_of

    _opened(run)
    return hta_of(run, include_last_profiler_step)


class Advice(dict[str, Any]):
    """The contents of ``dptrace advise --json``, shown in a notebook as the table of what to change."""

    def _repr_html_(self) -> str:
        plan = (self.get("chosen") or {}).get("label", "no layout fits")
        title = f"{self['recorded']}, mode {self['mode']}" if "recorded" in self else plan
        found = [*self.get("findings", ()), *self.get("compute_findings", ())]
        advised = [(one["advice"], one["gain_share"], one["text"], "") for one in found]
        advised += [
            (one["what"], one["gain_share"], one["reason"], one["do"]) for one in self["checks"] if one["applies"]
        ]
        rows = [(what, "" if part is None else f"{part:.0%}", why, how or "") for what, part, why, how in advised]
        answers = (f"{step['question']} {step['answer']}: {step['numbers']}." for step in self["path"])
        return html_table(f"Advice on {title}", ("what to change", "gain", "why", "how"), rows, answers)


@speaks_python()
def advise(run: RunData | None = None, **description: Any) -> Advice:
    """Advise on a training: the contents of ``dptrace advise --json``.

    Args:
        run: a recorded run, to advise on what it shows; opened with its intervals.
        description: or the options of ``dptrace advise`` with underscores: ``params=70e9, gpus=64``.

    Raises:
        UsageError: the description is incomplete or contradicts itself, or both are given.
        DptraceError: the run has no steps.
    """
    if run is not None:
        if description:
            raise UsageError(f"{min(description)} describes a training; a recorded run describes itself.")
        from dptrace.replay.advice import recorded_advice

        _opened(run)
        return Advice(recorded_advice(run))
    from dptrace.model.planning.reports import advice_report

    return Advice(advice_report(_description(description)))


@speaks_python()
def memory(**description: Any) -> dict[str, Any]:
    """Compute what a training takes on each GPU: the contents of ``dptrace predict --memory --json``.

    Args:
        description: its options with underscores: ``params=7e9, gpus=64, strategy="fsdp"``.

    Raises:
        UsageError: the description is incomplete or contradicts itself.
    """
    from dptrace.model.planning.reports import memory_report

    return memory_report(_description(description))


@speaks_python()
def predict(*, tokens: float | None = None, **description: Any) -> dict[str, Any]:
    """Predict the step of a training: the contents of ``dptrace predict --json``.

    Args:
        tokens: to train on; adds ``training_days``.
        description: the options of ``dptrace predict`` with underscores. Without ``strategy`` all are compared.

    Raises:
        UsageError: the description is incomplete or contradicts itself.
    """
    from dptrace.model.planning.reports import predict_report

    return predict_report(_description(description), tokens)


@speaks_python(gamma="gamma_ps", bytes="size_bytes")
def predict_message(
    size_bytes: float,
    *,
    gpus: int = 8,
    link: str = "nvlink4,ib-ndr",
    gpus_per_node: int = 8,
    gamma_ps: float = 0.0,
) -> dict[str, Any]:
    """Predict one message by every collective and all-reduce algorithm: ``dptrace predict --bytes --json``.

    Args:
        size_bytes: as nccl-tests counts it: of the whole tensor.
        link: within nodes and between them: names, or latency and bandwidth as ``"5us:25GB/s"``.
        gamma_ps: picoseconds to add a byte.

    Raises:
        UsageError: fewer than two GPUs, no byte, or an unknown link.
    """
    from dptrace.model.training.communication import GAMMA_PS, message_costs, nominal_network

    GAMMA_PS.check(gamma_ps, "--gamma")
    return message_costs(nominal_network(link, gpus_per_node), size_bytes, gpus, gamma_ps * 1e-12)


def _description(given: dict[str, Any]) -> Description:
    from dptrace.model.planning.describe import Description

    fields = [name for name in Description.__struct_fields__ if name != "given"]
    if unknown := given.keys() - set(fields):
        known = ", ".join(fields)
        raise UsageError(f"{min(unknown)} is not part of a description; it has {known}.")
    return Description(**given, given=frozenset(given))


INTERNAL = {
    *("align", "analyze_cross_rank", "answers", "cross_rank", "devices", "efficiency", "figures_only", "pipelines"),
    *("has_selected_steps", "read_again", "rereader", "selected_from", "shifts", "sources", "splits", "timelines"),
    "workload",
}
"""What dptrace's own parts use of a run; neither documented nor completed when typed."""


class Run(RunData):
    """The recording of one job: a timeline per GPU, sorted by rank and device, with all that can be asked of it.

    :func:`dptrace.open` reads one. Its memory tables need memory events in the files, and read them again for these:
    record them with ``dptrace record --memory``, or with ``profile_memory=True`` of torch.profiler.
    """

    def __dir__(self) -> list[str]:
        return sorted(set(super().__dir__()) - INTERNAL)

    select = speaks_python()(RunData.select)

    @property
    def replay(self) -> Replay:
        """The run prepared for what-ifs: its dependency graph, built once from a second reading of the files.

        Raises:
            DptraceError: a file can't be read again, or the run was opened with ``figures_only``.
        """
        from dptrace.replay.whatif import replay_of

        return replay_of(self)

    compare = compare
    whatif = whatif
    critical_path = critical_path
    show = show
    hta = hta_analysis

    @listed_in_docstring(columns.FINDINGS)
    def findings(self) -> pd.DataFrame:
        """Return the findings, the greatest gain first: a row each.

        The run is replayed without each, for which its files are read again. Where a replay can't tell, a finding says
        why, and is placed by the time that it counts.
        """
        from dptrace.replay.findings import findings_of
        from dptrace.run.tables import finding_frame

        return finding_frame(findings_of(self))

    @listed_in_docstring(columns.KERNELS)
    def kernel_summary(
        self, by: str = "kernel", kind: str = "all", per_rank: bool = False, provenance: str | Path | None = None
    ) -> pd.DataFrame:
        """Return where the devices' time goes, by kernel or by what launched it: a row per group, most time first.

        Args:
            by: ``kernel``, ``operator``, ``operator-shape``, ``module``, ``layer``, ``source``, ``annotation`` or
                ``phase``. All but ``kernel`` and ``phase`` read the files of the run again.
            kind: ``all``, ``compute``, ``communication`` or ``memory``.
            per_rank: give each rank rows of its own.
            provenance: for ``source``, a folder that torch.compile wrote with ``TORCH_TRACE=FOLDER`` and
                ``INDUCTOR_PROVENANCE=1``, or one of its files.

        With another *by*, the columns that name a row are others; docs/reference/json.md lists them.

        Raises:
            DptraceError: the run was opened with ``figures_only``, or its files can't be read again.
            UsageError: there is no such *by* or *kind*.
        """
        import pandas as pd

        from dptrace.run.kernels import kernel_summary

        return typed(pd.DataFrame(kernel_summary(self, by, kind, per_rank, provenance).rows), columns.KERNELS)

    @listed_in_docstring(columns.FINDINGS)
    def compute_findings(self) -> pd.DataFrame:
        """Return what makes compute slower than it could be, the greatest gain first: a row each; none on a CPU.

        The files of the run are read again, for operators and their shapes. Their gains are those of a list of their
        own: the same time may be in :meth:`findings`.

        Raises:
            DptraceError: the run was opened with ``figures_only``, or its files can't be read again.
        """
        from dptrace.replay.findings import compute_findings_of
        from dptrace.run.tables import finding_frame

        return finding_frame(compute_findings_of(self))

    @listed_in_docstring(columns.LAUNCHES)
    def launches(self, per_rank: bool = False) -> pd.DataFrame:
        """Return where the time of the launching threads goes: a row per operator and runtime call.

        A run that was built in memory has none.

        Raises:
            DptraceError: as for :meth:`kernel_summary`.
        """
        from dptrace.run.kernels import launch_table

        rank = columns.ALLOCATOR_CALLS[:1] if per_rank else ()
        return frame(launch_table(self, per_rank)[0], (*rank, *columns.LAUNCHES))

    @listed_in_docstring(columns.MEMORY_PEAKS)
    def memory(self) -> pd.DataFrame:
        """Return the most memory that each step and phase used: a row per rank, device, step and phase."""
        from dptrace.run.memory import device_reports, peak_rows

        return frame(peak_rows(device_reports(self)), columns.MEMORY_PEAKS)

    @listed_in_docstring(columns.MEMORY_USE)
    def memory_usage(self, by: str = "kind") -> pd.DataFrame:
        """Return what memory was used for: a row per rank, device and kind, operator or module.

        Args:
            by: ``kind`` (gradients, activations …), ``operator`` or ``module``.

        Raises:
            UsageError: *by* is something else.
        """
        from dptrace.run.memory import BY, device_reports, usage_rows

        if by not in BY:
            raise UsageError(f"memory can't be grouped by {by!r}; choose from {', '.join(BY)}.")
        return frame(usage_rows(device_reports(self), by), columns.MEMORY_USE)

    @listed_in_docstring(columns.BLOCKS)
    def memory_blocks(self) -> pd.DataFrame:
        """Return the blocks that were alive at each device's peak, the largest first: a row each."""
        from dptrace.run.memory import block_rows, device_reports

        return frame(block_rows(device_reports(self)), columns.BLOCKS)

    @listed_in_docstring(columns.MEMORY_EVENTS)
    def memory_over_time(self) -> pd.DataFrame:
        """Return the memory after each allocation and free: a row per event."""
        from dptrace.run.memory import device_reports

        return frame_of(columns.MEMORY_EVENTS, device_reports(self))

    @listed_in_docstring(columns.ALLOCATOR_CALLS)
    def allocator_calls(self) -> pd.DataFrame:
        """Return the calls of the GPU's runtime that allocate or free memory: a row per rank and name."""
        from dptrace.run.memory import call_rows, device_reports

        return frame(call_rows(device_reports(self)), columns.ALLOCATOR_CALLS)

    @speaks_python(params="parameters")
    @listed_in_docstring(columns.UTILIZATION)
    def utilization(
        self,
        *,
        parameters: float | None = None,
        tokens: float | None = None,
        samples: float | None = None,
        peak_tflops: float | None = None,
    ) -> pd.DataFrame:
        """Return what each step computes, and the share of its GPU's peak: a row per rank, device and step.

        What is not given comes from run.json, the peak from the table of GPUs.

        Args:
            parameters: of the whole model.
            tokens: of one step, over all ranks.
            samples: of one step, over all ranks.
            peak_tflops: dense peak of one GPU, in TFLOP/s.
        """
        from dptrace.run.utilization import Workload, utilization_of

        given = Workload(parameters, tokens, samples, peak_tflops)
        found = utilization_of(self.devices, self.metadata, self.world_size, given)
        return frame((step.to_dict() for step in found.steps), columns.UTILIZATION)

    def to_dict(self, align: bool = True, memory: bool = False) -> dict[str, Any]:
        """Return the figures and findings as plain data, as ``dptrace analyze --json`` prints them.

        Args:
            align: correct clocks that are off before ranks are compared.
            memory: add the memory of each rank and device, for which its file is read again.
        """
        from dptrace.replay import findings

        return findings.to_dict(self if align else self.on_own_clocks(), memory)
