"""The public functions; each imports what it needs when it is called, so that ``import dptrace`` stays light."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dptrace.core.files import atomic_write
from dptrace.errors import DptraceError, UsageError
from dptrace.load.options import ReadOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dptrace.analysis.findings.finding import Finding
    from dptrace.comparison.compare import Comparison as Comparison
    from dptrace.model.planning.describe import Description
    from dptrace.replay.critical_path import CriticalPath as CriticalPath
    from dptrace.replay.options import ExtraOptions as ExtraOptions
    from dptrace.replay.whatif import Replay as Replay
    from dptrace.replay.whatif import WhatIf as WhatIf
    from dptrace.run.run import Run
    from dptrace.viewers.pages.explain import Explained as Explained
    from dptrace.viewers.pages.view import NotebookPage as NotebookPage

__all__ = [
    "advise",
    "compare",
    "critical_path",
    "explain",
    "export_trace",
    "figure",
    "find_gains",
    "hta_analysis",
    "memory",
    "open",
    "predict",
    "predict_message",
    "replay",
    "show",
    "whatif",
    "with_gains",
]


def open(
    *paths: str | PathLike[str],
    comm_patterns: str | Sequence[str] = (),
    strict: bool = False,
    cache: bool = True,
    jobs: int | None = None,
    dask: str | None = None,
    figures_only: bool = False,
) -> Run:
    """Read a run: a run folder, a trace file, several files, a folder or a glob of traces, or URLs of them.

    Args:
        paths: what to read. All paths together are one run, with one file per rank.
        comm_patterns: regular expressions for further communication kernels, or one, searched in kernel names without
            regard to case.
        strict: raise an error for data that is truncated, damaged or impossible, instead of adding a note to the run.
        cache: use and write the cache of parsed files.
        jobs: number of processes that read; None chooses.
        dask: address of a Dask scheduler whose workers read the files and return figures, or ``"local"``.
        figures_only: drop all intervals but communication once the figures are computed. This keeps runs of thousands
            of ranks small; pictures and :meth:`Run.kernels` need the intervals.

    Raises:
        DptraceError: the message names the file, what is wrong with it, and what to do.
    """
    from dptrace.load.open import open_run
    from dptrace.readers.discovery import path_text

    if any(isinstance(path, list | tuple | set) for path in paths):
        raise UsageError("dptrace.open takes each path as its own argument: dptrace.open(*paths).")
    patterns = (comm_patterns,) if isinstance(comm_patterns, str) else tuple(comm_patterns)
    read_options = ReadOptions(patterns, strict, cache, jobs, dask, figures_only or dask is not None)
    return open_run([path_text(path) for path in paths], read_options)


def compare(before: Run | Sequence[Run], after: Run | Sequence[Run]) -> Comparison:
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

    return compare(before, after)


def replay(run: Run) -> Replay:
    """Prepare a run for what-ifs: build its dependency graph from a second reading of its files.

    Raises:
        DptraceError: a file can't be read again, or the run was opened with ``figures_only``.
    """
    from dptrace.replay.whatif import Replay

    return Replay(run)


def whatif(
    run: Run,
    *,
    compute: float | None = None,
    bandwidth: float | str | None = None,
    kernels: Mapping[str, float] | None = None,
    straggler: Mapping[int, int] | None = None,
    no_straggler: bool = False,
    no_host_delay: bool = False,
    perfect_overlap: bool = False,
    **others: Unpack[ExtraOptions],
) -> WhatIf:
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
        others: ``latency`` (``"0.5x"`` or ``"5us"``), ``link`` (``"nvlink4"``, ``"5us:12.5GB/s"``, a file of
            ``dptrace links -o``), ``compress`` (``"fp16"``), ``world_size`` (with ``link`` for a run of one rank),
            ``bucket_cap_mb``, ``schedule`` (``"naive"``, ``"interleaved"``, ``"ddp"``, ``"overlap-optimizer"``),
            ``accumulate`` (micro-steps for each step of the optimizer), ``fuse`` (a regular expression),
            ``cuda_graphs`` and ``no_recompute``.

    Returns:
        The step as measured, replayed and predicted in ns, its range, its parts and ranks, the predicted run, and the
        reasons to doubt the answer.

    Raises:
        UsageError: a factor is not above 0, no kernel matches, or a rank is not in the run.
        DptraceError: a file can't be read again, or the run was opened with ``figures_only``.
    """
    from dptrace.bench.links import with_measured_link
    from dptrace.replay.options import changes_of

    changes = changes_of(
        compute=compute,
        bandwidth=bandwidth,
        kernels=kernels,
        straggler=straggler,
        no_straggler=no_straggler,
        no_host_delay=no_host_delay,
        perfect_overlap=perfect_overlap,
        **with_measured_link(others),
    )
    return run.replay.whatif(changes)


def with_gains(run: Run) -> Run:
    """Return a run whose findings say what a step would gain without each; see :meth:`dptrace.Run.with_gains`."""
    from dptrace.replay.gains import with_gains

    return with_gains(run)


def find_gains(run: Run, found: Sequence[Finding], *, stragglers: bool = True) -> tuple[Finding, ...]:
    """Return findings of a run with what a step would gain without each, the greatest gain first."""
    from dptrace.replay.gains import find_gains

    return find_gains(run, found, stragglers=stragglers)


def critical_path(run: Run, step: str | int | None = None) -> CriticalPath:
    """Find the chain of kernels, collectives, launches and host gaps that sets the length of a step, across ranks.

    Args:
        run: the run, with all its ranks and steps.
        step: name of the step, such as ``ProfilerStep#4``, or its number; by default, the one of median length.

    Returns:
        The chain, its time by kind, rank and operator, what 10 % less time of each would gain by replay, and the
        slack of every kernel of the step.

    Raises:
        UsageError: no step has that name.
        DptraceError: a file can't be read again, or the run was opened with ``figures_only``.
    """
    from dptrace.replay.critical_path import critical_path

    return critical_path(run.replay, step)


def show(
    run: Run, view: str = "gantt", height: int | None = None, critical_path: CriticalPath | None = None
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

    return show(run, view, height, critical_path)


def figure(
    run: Run, *, width: int = 640, annotate: bool = False, every_step: bool = False, every_rank: bool = False
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

    return figure_svg(run, every_step, every_rank, width, annotate)


def export_trace(run: Run, path: str | PathLike[str], *, align: bool = True, force: bool = False) -> Path:
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
    from dptrace.export.tracks import align_run

    target = Path(path)
    suffix = format_of(target)
    check_output(target, force)
    if run.sources is not None:
        refuse_overwriting([target], run.sources.local_files())
    if run.figures_only:
        raise DptraceError(f"{run.path}: opened with figures_only, which drops the intervals. Leave it out to export.")
    with atomic_write(target) as temporary:
        write_trace(run, temporary, suffix, aligned_run=align_run(run, align))
    return target


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


def hta_analysis(run: Run, include_last_profiler_step: bool = False) -> Any:
    """Return Holistic Trace Analysis's ``TraceAnalysis`` of the run's files, with all its methods.

    Args:
        run: a run that was read from files.
        include_last_profiler_step: keep the last step, which HTA drops by default.

    Raises:
        MissingExtraError: HTA is not installed.
        DptraceError: the run was not read from files, or one of them has changed since.
    """
    from dptrace.hta.trace_analysis import hta_of

    return hta_of(run, include_last_profiler_step)


def advise(run: Run | None = None, **description: Any) -> dict[str, Any]:
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

        if isinstance(run, str | PathLike):
            raise UsageError(f"{run}: is a path; open it first: dptrace.advise(dptrace.open(path)).")
        return recorded_advice(run)
    from dptrace.model.planning.advice_report import advice_report

    return advice_report(_description(description))


def memory(**description: Any) -> dict[str, Any]:
    """Compute what a training takes on each GPU: the contents of ``dptrace memory --json``.

    Args:
        description: the options of ``dptrace memory`` with underscores: ``params=7e9, gpus=64, strategy="fsdp"``.

    Raises:
        UsageError: the description is incomplete or contradicts itself.
    """
    from dptrace.model.planning.memory_report import memory_report

    return memory_report(_description(description))


def predict(*, tokens: float | None = None, **description: Any) -> dict[str, Any]:
    """Predict the step of a training: the contents of ``dptrace predict --json``.

    Args:
        tokens: to train on; adds ``training_days``.
        description: the options of ``dptrace predict`` with underscores. Without ``strategy`` all are compared.

    Raises:
        UsageError: the description is incomplete or contradicts itself.
    """
    from dptrace.model.planning.predict_report import predict_report

    return predict_report(_description(description), tokens)


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

    if unknown := given.keys() - set(Description.__struct_fields__):
        known = ", ".join(Description.__struct_fields__)
        raise UsageError(f"{min(unknown)} is not part of a description; it has {known}.")
    return Description(**given)
