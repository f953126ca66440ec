"""HTA's analyses: each calls HTA's own method and returns its tables and figures."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from dptrace.core.files import check_output
from dptrace.core.patterns import matches
from dptrace.errors import DptraceError, UsageError
from dptrace.hta.options import ANALYSES, Options
from dptrace.hta.trace_analysis import analysis_of, captured_figures, parsed_trace, silence_hta
from dptrace.readers.discovery import Sources

__all__ = ["Result", "analyze", "frequent_sequences", "plain_records"]


# Write HTA's results into a copy of the trace, for Perfetto.


_PREFIXES = {"critical-path": "overlaid_critical_path_", "frequent-sequences": "overlaid_"}


def check_overlay(name: str, trace: Any, rank: int, folder: str, force: bool) -> None:
    """Check the target of an overlay before any work, and create its folder.

    Raises:
        UsageError: the file exists and *force* is not given, the command reads it, or the folder cannot be created.
    """
    file = _target(name, trace, rank, folder)
    try:
        file.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{folder}: cannot be used as the folder of the overlaid trace: {error.strerror or error}. Name another."
        ) from None
    check_output(file, force)


def _target(name: str, trace: Any, rank: int, folder: str) -> Path:
    return Path(folder, _PREFIXES[name] + PurePath(trace.trace_files[rank]).name)


def frequent_sequences(
    analysis: Any, operator: str, rank: int, draw: bool, folder: str | None, chosen: dict[str, Any]
) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Find the kernel sequences that an operator launches most often; also return the overlaid trace, if any.

    HTA always writes that trace and reads the whole file again for it; without *folder*, both are suppressed.
    """
    if folder is not None:
        frame = analysis.get_frequent_cuda_kernel_sequences(operator, folder, rank=rank, visualize=draw, **chosen)
        return frame, (str(_target("frequent-sequences", analysis.t, rank, folder)),) if len(frame) else ()
    with TemporaryDirectory(prefix="dptrace.") as nowhere, _no_overlay(analysis.t):
        return analysis.get_frequent_cuda_kernel_sequences(operator, nowhere, rank=rank, visualize=draw, **chosen), ()


@contextmanager
def _no_overlay(trace: Any) -> Iterator[None]:
    from hta.analyzers.cuda_kernel_analysis import CudaKernelAnalysis

    overlay = CudaKernelAnalysis.__dict__["_overlay_frequent_patterns_with_trace"]
    CudaKernelAnalysis._overlay_frequent_patterns_with_trace = classmethod(lambda cls, *args, **kwargs: {})
    trace.write_raw_trace = lambda *args, **kwargs: None
    try:
        yield
    finally:
        CudaKernelAnalysis._overlay_frequent_patterns_with_trace = overlay
        del trace.write_raw_trace


Tables = dict[str, pd.DataFrame]


@dataclass(frozen=True, slots=True)
class Result:
    """The result of an analysis."""

    tables: Tables
    """Frames by name; their columns keep HTA's names and units."""
    figures: list[Any]
    """HTA's plotly figures, if they were requested and HTA draws any."""
    written: tuple[str, ...]
    """The files that were written."""
    notes: tuple[str, ...]
    """Notes on the files that were read, a sentence each."""


def analyze(
    name: str,
    found: Sources,
    options: Options,
    against: Sources | None = None,
    strict: bool = False,
    draw: bool = False,
    force: bool = False,
) -> Result:
    """Run one of ``options.ANALYSES``.

    Args:
        against: the second run, for trace-diff.
        strict: treat damage in a file as an error instead of a note.
        draw: also create HTA's figures.
        force: allow an overlaid trace to overwrite a file.

    Raises:
        DptraceError: the analysis fails on this run.
        UsageError: a rank is not in the run, or a required option is missing.
    """
    with silence_hta() as errors:
        trace = parsed_trace(found, strict, options.rounding)
        task = _AnalysisRun(name, trace, options, draw, errors)
        if against is not None:
            task.other = parsed_trace(against, strict, options.rounding)
            _select_ranks(task.other, options.against_ranks)
        else:
            trace.align_and_filter_trace(bool(options.include_last_step))
        _select_ranks(trace, options.ranks)
        if options.overlay:
            check_overlay(name, trace, min(trace.traces), options.overlay, force)
        with captured_figures() as figures:
            tables = task.run()
    notes = (*trace.notes, *(task.other.notes if task.other is not None else ()))
    return Result({key: _flat(table) for key, table in tables.items()}, figures if draw else [], task.written, notes)


def _select_ranks(trace: Any, ranks: tuple[int, ...]) -> None:
    """Keep only the given ranks; all if there are none."""
    absent = [rank for rank in ranks if rank not in trace.traces]
    if absent:
        known = ", ".join(map(str, sorted(trace.traces)))
        raise UsageError(f"--ranks: rank {absent[0]} is not in the run. Choose from {known}.")
    if ranks:
        trace.traces = {rank: trace.traces[rank] for rank in sorted(ranks)}


def _flat(table: pd.DataFrame) -> pd.DataFrame:
    """Join the levels of column names by underscores, and turn a named index into columns."""
    if isinstance(table.columns, pd.MultiIndex):
        table = table.set_axis(["_".join(map(str, levels)).strip("_") for levels in table.columns], axis=1)
    return table.reset_index(drop=table.index.names == [None])


class _AnalysisRun:
    """One call of an analysis."""

    def __init__(self, name: str, trace: Any, options: Options, draw: bool, errors: list[str]) -> None:
        self.name, self.options, self.draw, self.errors = name, options, draw, errors
        self.trace, self.other = trace, None
        self.written: tuple[str, ...] = ()

    def run(self) -> Tables:
        """Call HTA and turn its exceptions into messages.

        Raises:
            DptraceError: HTA failed, or returned no rows.
        """
        self.ranks = sorted(self.trace.traces)
        self.hta = analysis_of(self.trace)
        try:
            tables = _RUNNERS[self.name](self)
        except DptraceError:
            raise
        except Exception as error:
            # HTA has no exceptions of its own: KeyError, IndexError, AssertionError, ValueError ...
            raise self.failed(f"{type(error).__name__}: {error}") from error
        if not any(len(table) for table in tables.values()):
            raise self.failed("it finds nothing")
        return tables

    def failed(self, why: str) -> DptraceError:
        """Return an error that contains what HTA logged and what the analysis needs."""
        logged = [error.rstrip(".") for error in self.errors if len(error) < 300]
        reasons = "; ".join(dict.fromkeys([*logged, why.strip().rstrip(".:")]))
        needs = ANALYSES[self.name].needs
        return DptraceError(f"HTA's {self.name} failed on this run ({reasons}). It needs {needs}.")

    def chosen(self, *names: str, **renamed: str) -> dict[str, Any]:
        """Return the options that the user set, by HTA's names for them."""
        pairs = {**{name: name for name in names}, **renamed}
        values = {theirs: getattr(self.options, ours) for theirs, ours in pairs.items()}
        return {name: list(v) if isinstance(v, tuple) else v for name, v in values.items() if v not in (None, ())}

    def by_rank(self, frames: dict[int, pd.DataFrame]) -> pd.DataFrame:
        """Concatenate the ranks' frames, with the rank as the first column."""
        parts = []
        for rank, frame in frames.items():
            part = frame.drop(columns="rank", errors="ignore")
            part.insert(0, "rank", rank)
            parts.append(part)
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _temporal_breakdown(task: _AnalysisRun) -> Tables:
    return {"ranks": task.hta.get_temporal_breakdown(visualize=task.draw)}


def _overlap(task: _AnalysisRun) -> Tables:
    return {"ranks": task.hta.get_comm_comp_overlap(visualize=task.draw)}


def _kernel_breakdown(task: _AnalysisRun) -> Tables:
    chosen = task.chosen("num_kernels", "duration_ratio", include_memory_kernels="memory_kernels")
    kinds, kernels = task.hta.get_gpu_kernel_breakdown(visualize=task.draw, **chosen)
    return {"kinds": kinds, "kernels": kernels}


def _annotation_breakdown(task: _AnalysisRun) -> Tables:
    chosen = task.chosen("num_kernels", "duration_ratio")
    on_gpu = not task.options.cpu
    frame = task.hta.get_gpu_user_annotation_breakdown(use_gpu_annotation=on_gpu, visualize=task.draw, **chosen)
    if frame is None:
        raise task.failed(f"it finds no {'gpu_' * on_gpu}user_annotation")
    return {"annotations": frame}


def _idle_breakdown(task: _AnalysisRun) -> Tables:
    chosen = task.chosen("streams", consecutive_kernel_delay="kernel_delay", show_idle_interval_stats="intervals")
    idle, intervals = task.hta.get_idle_time_breakdown(ranks=task.ranks, visualize=task.draw, **chosen)
    return {"idle": idle.reset_index(drop=True)} | ({} if intervals is None else {"intervals": intervals})


def _launch_statistics(task: _AnalysisRun) -> Tables:
    runtime, delay = task.options.runtime_cutoff, task.options.launch_delay_cutoff
    runtime, delay = 50 if runtime is None else runtime, 100 if delay is None else delay
    chosen = task.chosen(include_memory_events="memory_kernels")
    frames = task.hta.get_cuda_kernel_launch_stats(task.ranks, runtime, delay, visualize=task.draw, **chosen)
    # HTA only draws these: the number of launches that it counts as short kernels and as outliers.
    counts = [
        {
            "rank": rank,
            "launches": len(f),
            "short_gpu_kernels": int((f["cpu_duration"].le(runtime) & f["gpu_duration"].lt(f["cpu_duration"])).sum()),
            f"runtime_over_{runtime}us": int(f["cpu_duration"].gt(runtime).sum()),
            f"launch_delay_over_{delay}us": int(f["launch_delay"].gt(delay).sum()),
        }
        for rank, f in frames.items()
        if len(f)
    ]
    return {"outliers": pd.DataFrame(counts), "launches": task.by_rank(frames)}


def _queue_length(task: _AnalysisRun) -> Tables:
    series = task.hta.get_queue_length_time_series(task.ranks)
    chosen = task.chosen(max_queue_length="max_queue_length")
    full = task.hta.get_time_spent_blocked_on_full_queue(series, **chosen)
    summary = task.hta.get_queue_length_summary_from_time_series(series)
    tables = {"summary": pd.DataFrame() if summary is None else summary, "full_queue": full}
    return tables | ({"series": task.by_rank(series)} if task.options.series else {})


def _memory_bandwidth(task: _AnalysisRun) -> Tables:
    summary = task.hta.get_memory_bw_summary(task.ranks)
    tables = {"summary": pd.DataFrame() if summary is None else summary}
    if task.options.series:
        tables["series"] = task.by_rank(task.hta.get_memory_bw_time_series(task.ranks))
    return tables


def _critical_path(task: _AnalysisRun) -> Tables:
    options = task.options
    annotation = "ProfilerStep" if options.annotation is None else options.annotation
    symbols = task.trace.symbol_table.get_sym_table()
    matching = [number for number, symbol in enumerate(symbols) if annotation in symbol]
    count = int(task.trace.traces[task.ranks[0]]["name"].isin(matching).sum())
    if options.instance is not None and options.instance[1] >= count:
        raise UsageError(f"--instance counts from 0, and rank {task.ranks[0]} has {count} events named {annotation!r}.")
    chosen = task.chosen(data_load_events="data_loading")
    if options.data_loading:
        chosen["data_load_events"] = [_any_match(symbols, options.data_loading)]
    result = task.hta.critical_path_analysis(task.ranks[0], annotation, options.instance, **chosen)
    if result is None:
        raise task.failed(f"no annotation contains {annotation!r}")
    graph, valid = result
    if not valid:
        raise task.failed("its dependency graph is not valid")
    share = graph.summary().rename("percent").sort_values(ascending=False)
    path = graph.get_critical_path_breakdown()
    # The edges come from a set, so they are sorted; categories are numbers of the symbol table.
    path = path.sort_values(["duration", "event_idx", "type"], ascending=[False, True, True]).drop(columns="index")
    path["cat"] = [symbols[int(category)] if category == category else "" for category in path["cat"]]
    if options.overlay:
        task.written = (task.hta.overlay_critical_path_analysis(task.ranks[0], graph, options.overlay),)
    return {"summary": share.reset_index(), "path": path.reset_index(drop=True)}


def _any_match(symbols: Sequence[str], patterns: Sequence[str]) -> str:
    """Return a pattern of exactly the symbols that match one of the user's, which HTA searches without a limit."""
    fits = [matches(pattern, symbols, "--data-loading") for pattern in patterns]
    names = [symbol for symbol, *fit in zip(symbols, *fits, strict=True) if any(fit)]
    return rf"\A(?:{'|'.join(map(re.escape, names))})\Z" if names else "(?!)"


def _frequent_sequences(task: _AnalysisRun) -> Tables:
    if not task.options.operator:
        raise UsageError("Name an operator, for example --operator aten::linear.")
    chosen = task.chosen(min_pattern_len="min_length", top_k="top")
    frame, task.written = frequent_sequences(
        task.hta, task.options.operator, task.ranks[0], task.draw, task.options.overlay, chosen
    )
    return {"sequences": frame}


def _trace_diff(task: _AnalysisRun) -> Tables:
    from hta.trace_diff import DeviceType, TraceDiff

    if task.other is None:
        raise UsageError("Name the second run with --against RUN2.")
    options = task.options
    frame = TraceDiff.compare_traces(
        task.trace,
        task.other,
        list(options.ranks) or None,
        list(options.against_ranks) or None,
        device_type=DeviceType[(options.device or "all").upper()],
        use_short_name=bool(options.short_names),
        **task.chosen(control_iteration="iterations", test_iteration="against_iterations"),
    )
    if task.draw:
        TraceDiff.visualize_counts_diff(frame)
        TraceDiff.visualize_duration_diff(frame)
    return {"operators": frame.sort_values("diff_duration", key=abs, ascending=False, kind="stable")}


_RUNNERS: dict[str, Callable[[_AnalysisRun], Tables]] = {
    "temporal-breakdown": _temporal_breakdown,
    "overlap": _overlap,
    "kernel-breakdown": _kernel_breakdown,
    "annotation-breakdown": _annotation_breakdown,
    "idle-breakdown": _idle_breakdown,
    "launch-statistics": _launch_statistics,
    "queue-length": _queue_length,
    "memory-bandwidth": _memory_bandwidth,
    "critical-path": _critical_path,
    "frequent-sequences": _frequent_sequences,
    "trace-diff": _trace_diff,
}


def plain_records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a table's rows as plain data: Python numbers, and None for missing values."""
    return [{str(key): _plain(value) for key, value in row.items()} for row in frame.to_dict("records")]


def _plain(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and value != value else value
