"""HTA's analyses with HTA's own settings: each calls HTA's method and returns its tables."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from dptrace.errors import DptraceError
from dptrace.hta.trace_analysis import hta_analysis, silence_hta
from dptrace.readers.discovery import Sources

if TYPE_CHECKING:
    import pandas as pd

Tables = dict[str, "pd.DataFrame"]


class Analysis(NamedTuple):
    """One of HTA's analyses."""

    summary: str
    """One line on what it computes."""
    needs: str
    """What a recording must contain, for the message when the analysis fails."""
    tables: Callable[[Any], Tables]
    """Calls the methods of HTA's ``TraceAnalysis`` for its tables, by name."""


def analyze(name: str, found: Sources, strict: bool = False) -> tuple[Tables, tuple[str, ...]]:
    """Run one of the ANALYSES.

    Args:
        strict: treat damage in a file as an error instead of a note.

    Returns:
        Frames by name, whose columns keep HTA's names and units, and a sentence for each note on the files.

    Raises:
        DptraceError: a file can't be read, or the analysis fails on this run.
        MissingExtraError: HTA is not installed.
    """
    analysis = hta_analysis(found, strict)
    with silence_hta() as logged:
        try:
            tables = ANALYSES[name].tables(analysis)
            why = "" if any(len(table) for table in tables.values()) else "it finds nothing"
        except Exception as error:  # HTA has no exceptions of its own: KeyError, IndexError, AssertionError ...
            why = f"{type(error).__name__}: {error}"
    if why and not any((frame["stream"] >= 0).any() for frame in analysis.t.traces.values()):
        raise DptraceError(
            f"HTA's {name} needs {ANALYSES[name].needs}, and no file here has GPU kernels. What dptrace computes of a "
            "recording on CPUs: dptrace analyze."
        )
    if why:
        reasons = dict.fromkeys(text.strip().rstrip(".:") for text in (*logged, why) if len(text) < _MAX_REASON)
        needs = ANALYSES[name].needs
        raise DptraceError(f"HTA's {name} failed on this run ({'; '.join(reasons)}). It needs {needs}.")
    return {key: _flat(table) for key, table in tables.items()}, analysis.t.notes


_MAX_REASON = 300
"""Longest message of HTA's that is repeated; longer ones print frames."""


def _flat(table: pd.DataFrame) -> pd.DataFrame:
    """Join the levels of column names by underscores, and turn a named index into columns."""
    if table.columns.nlevels > 1:
        table = table.set_axis(["_".join(map(str, levels)).strip("_") for levels in table.columns], axis=1)
    return table.reset_index(drop=table.index.names == [None])


def _ranks(analysis: Any) -> list[int]:
    return sorted(analysis.t.traces)


def _by_rank(frames: dict[int, pd.DataFrame]) -> pd.DataFrame:
    """Concatenate the ranks' frames, with the rank as the first column."""
    import pandas as pd

    parts = []
    for rank, frame in frames.items():
        part = frame.drop(columns="rank", errors="ignore")
        part.insert(0, "rank", rank)
        parts.append(part)
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()


def _annotation_breakdown(analysis: Any) -> Tables:
    if (frame := analysis.get_gpu_user_annotation_breakdown(visualize=False)) is None:
        raise ValueError("there is no gpu_user_annotation")
    return {"annotations": frame}


def _known(**tables: pd.DataFrame | None) -> Tables:
    """Leave out the tables for which HTA finds nothing."""
    return {name: table for name, table in tables.items() if table is not None}


def _queue_length(analysis: Any) -> Tables:
    series = analysis.get_queue_length_time_series(_ranks(analysis))
    full = analysis.get_time_spent_blocked_on_full_queue(series)
    summary = analysis.get_queue_length_summary_from_time_series(series)
    return _known(summary=summary, full_queue=full)


def _critical_path(analysis: Any) -> Tables:
    result = analysis.critical_path_analysis(_ranks(analysis)[0], "ProfilerStep", None)
    if result is None:
        raise ValueError("there is no annotation ProfilerStep")
    graph, valid = result
    if not valid:
        raise ValueError("its dependency graph is not valid")
    percent = graph.summary().rename("percent").sort_values(ascending=False)
    path = graph.get_critical_path_breakdown()
    # The edges come from a set, so they are sorted; categories are numbers of the symbol table.
    path = path.sort_values(["duration", "event_idx", "type"], ascending=[False, True, True]).drop(columns="index")
    symbols = analysis.t.symbol_table.get_sym_table()
    path["cat"] = [symbols[int(category)] if category == category else "" for category in path["cat"]]
    return {"summary": percent.reset_index(), "path": path.reset_index(drop=True)}


_GPU = "GPU kernels in every rank's file"

ANALYSES = {
    "temporal-breakdown": Analysis(
        "GPU time of each rank: idle, compute, and other.",
        _GPU,
        lambda analysis: {"ranks": analysis.get_temporal_breakdown(visualize=False)},
    ),
    "overlap": Analysis(
        "Share of each rank's communication that compute overlaps.",
        _GPU,
        lambda analysis: {"ranks": analysis.get_comm_comp_overlap(visualize=False)},
    ),
    "kernel-breakdown": Analysis(
        "Time of each kind of kernel, and of the longest kernels of each kind.",
        _GPU,
        lambda analysis: dict(
            zip(("kinds", "kernels"), analysis.get_gpu_kernel_breakdown(visualize=False), strict=True)
        ),
    ),
    "annotation-breakdown": Analysis(
        "Time of the kernels in each user annotation.", "user annotations (record_function)", _annotation_breakdown
    ),
    "idle-breakdown": Analysis(
        "Idle time of each stream: waiting for the host, for the next kernel, or other.",
        "GPU kernels and the calls that launched them",
        lambda analysis: {
            "idle": analysis.get_idle_time_breakdown(ranks=_ranks(analysis), visualize=False)[0].reset_index(drop=True)
        },
    ),
    "launch-statistics": Analysis(
        "CPU time, GPU time and launch delay of each kernel launch.",
        "CUDA launch calls and the kernels that they launched",
        lambda analysis: {
            "launches": _by_rank(analysis.get_cuda_kernel_launch_stats(_ranks(analysis), visualize=False))
        },
    ),
    "queue-length": Analysis(
        "Number of operations queued on each stream, and the time that a full queue blocked the host.",
        "launch calls with one GPU event each",
        _queue_length,
    ),
    "memory-bandwidth": Analysis(
        "Bandwidth of copies and sets between host and device.",
        "copies with a recorded bandwidth",
        lambda analysis: _known(summary=analysis.get_memory_bw_summary(_ranks(analysis))),
    ),
    "critical-path": Analysis(
        "Critical path of the first rank's first step: the longest chain of dependent work on CPU and GPU.",
        "launch calls, kernels and steps, best with CUDA synchronization events (enable_cuda_sync_events)",
        _critical_path,
    ),
}
"""The analyses by their names on the command line."""


def plain_records(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a table's rows as plain data: Python numbers, and None for missing values."""
    return [{str(key): _plain(value) for key, value in row.items()} for row in frame.to_dict("records")]


def _plain(value: Any) -> Any:
    value = value.item() if hasattr(value, "item") else value
    return None if isinstance(value, float) and value != value else value
