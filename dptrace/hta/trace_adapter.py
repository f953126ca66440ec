"""Adapt frames of dptrace's reader to the Trace object of Holistic Trace Analysis (HTA)."""

from __future__ import annotations

import gzip
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hta.configs.env_options as options
import msgspec
import numpy as np
import pandas as pd
from hta.common.trace import Trace
from hta.common.trace_filter import CPUOperatorFilter, GPUKernelFilter
from hta.common.trace_parser import infer_gpu_type
from hta.common.trace_symbol_table import TraceSymbolTable
from hta.configs.parser_config import ParserConfig
from numpy.typing import NDArray

from dptrace.core.files import atomic_write
from dptrace.errors import DptraceError
from dptrace.hta.event_frame import ArgColumn, EventFrame, read_ranks
from dptrace.readers.discovery import Sources
from dptrace.readers.formats import pieces
from dptrace.readers.source import Source

_STEP = re.compile(r"ProfilerStep\s*#\s*(\d+)")


class DptraceTrace(Trace):  # type: ignore[misc] # HTA has no types
    """A Trace that has its frames from the start, in the state that HTA calls parsed."""

    def __init__(self, sources: dict[int, Source], notes: tuple[str, ...]) -> None:
        super().__init__(trace_files={}, trace_dir="")
        self.sources = sources
        # HTA uses these only to name overlaid files; it does not read them.
        self.trace_files = {rank: source.address for rank, source in sources.items()}
        self.is_parsed = True
        self.notes = notes
        """What was missing, dropped or inferred while reading, a sentence each."""

    def parse_traces(self, *args: object, **kwargs: object) -> None:
        """Do nothing: HTA's trace diff always calls this."""

    def get_raw_trace_for_one_rank(self, rank: int = 0) -> dict[str, Any]:
        """Return the whole document of a rank, for HTA's overlays."""
        if rank not in self.sources:
            raise ValueError(f"no trace for rank {rank}")
        source = self.sources[rank]
        if source.part:
            raise DptraceError(
                f"{source.address}: the file holds several ranks, and HTA overlays files of one. Omit the overlay "
                "folder."
            )
        text = b"".join((piece.head if i == 0 else b",") + piece.text for i, piece in enumerate(pieces(source)))
        try:
            document = msgspec.json.decode(text)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise DptraceError(
                f"{source.address}: damaged, and HTA can overlay complete files only. Omit the overlay folder."
            ) from None
        return document if isinstance(document, dict) else {"traceEvents": document}

    def write_raw_trace(self, output_file: str, trace_contents: dict[str, Any]) -> None:
        """Write an overlaid trace, compressed if the file name ends in ``.gz``; HTA's own method always compresses."""
        text = msgspec.json.encode(trace_contents)
        file = Path(output_file)
        with atomic_write(file) as temporary:
            temporary.write_bytes(gzip.compress(text, 6) if file.suffix == ".gz" else text)

    def align_and_filter_trace(self, include_last_profiler_step: bool | None = False) -> None:
        """Finish loading as HTA's loader does: all ranks start at 0, the last step is left out, the index is set."""
        super().align_and_filter_trace(include_last_profiler_step)
        for rank, frame in self.traces.items():
            self.traces[rank] = frame.set_index("index", drop=False).rename_axis(None)


def trace_of(found: Sources, strict: bool = False) -> DptraceTrace:
    """Read the files of a run into a Trace that is parsed, as HTA calls it, but not yet aligned and filtered.

    Args:
        strict: treat damage in a file as an error instead of a note.

    Raises:
        DptraceError: a file cannot be read, or two files have the same rank.
    """
    config = ParserConfig.get_default_cfg()
    if config.parse_all_args:
        raise DptraceError("HTA's parse_all_args is set, which only HTA's own loader supports: use that, or unset it.")
    arguments = [ArgColumn(a.name, a.raw_name, a.default_value) for a in config.get_args()]
    files, notes = read_ranks(found, arguments, not options.disable_ns_rounding(), strict)
    trace = DptraceTrace({rank: file.source for rank, file in files.items()}, tuple(notes))
    for rank, file in files.items():
        _add(trace, rank, file)
    return trace


def _add(trace: DptraceTrace, rank: int, file: EventFrame) -> None:
    local = TraceSymbolTable()
    local.add_symbols(file.symbols)
    frame = file.frame
    frame["index_correlation"] = _links(frame, local)
    frame["iteration"] = _iterations(frame, file.symbols)
    frame["end"] = frame["ts"] + frame["dur"]
    trace.symbol_table.add_symbols(file.symbols)
    numbers = trace.symbol_table.get_sym_id_map()
    table = np.array([numbers[symbol] for symbol in file.symbols], np.int64)
    frame["cat"], frame["name"] = table[frame["cat"]], table[frame["name"]]
    trace.traces[rank] = frame
    trace.meta_data[rank] = {**file.metadata, "device_type": infer_gpu_type(file.metadata, local.get_sym_id_map())}


def _links(frame: pd.DataFrame, symbols: TraceSymbolTable) -> pd.Series[Any]:
    """Return the index of each launch's GPU event and vice versa; 0 for a missing partner, -1 without a correlation.

    HTA's own ``transform_correlation_to_index`` writes indices into a column as narrow as the correlations, which
    pandas 3 refuses where a long file has small correlations (AMD's files do).
    """
    links = np.minimum(frame["correlation"].to_numpy(np.int64), 0)
    correlated = frame.loc[frame["correlation"].ne(-1), ["index", "correlation", "stream", "name"]]
    on_cpu, on_gpu = (choose()(correlated, symbols) for choose in (CPUOperatorFilter, GPUKernelFilter))
    pairs = on_cpu.merge(on_gpu, on="correlation", how="inner")
    cpu, gpu = pairs["index_x"].to_numpy(), pairs["index_y"].to_numpy()
    links[frame.index.get_indexer(cpu)] = gpu
    links[frame.index.get_indexer(gpu)] = cpu
    return pd.to_numeric(pd.Series(links, frame.index), downcast="integer")


def _iterations(frame: pd.DataFrame, symbols: Sequence[str]) -> pd.Series[Any]:
    """Number each event's step as HTA does, without its Python loop over events.

    The step of a CPU event is that of the last ``ProfilerStep`` event, in file order, during which it starts, or -1;
    that of a GPU event is its launch's; an event on stream 0 that is not a ``cpu_op`` has none (NaN).
    """
    step_at_start = _steps_at(frame, symbols)
    stream, link = frame["stream"].to_numpy(), frame["index_correlation"].to_numpy()
    steps = np.full(len(frame), np.nan)
    on_cpu = stream < 0
    if "cpu_op" in symbols:
        # Triton's operators have a stream and no launch.
        on_cpu |= (stream == 0) & (frame["cat"].to_numpy() == symbols.index("cpu_op"))
    steps[on_cpu] = step_at_start[on_cpu]
    linked = link > 0
    launch = frame.index.get_indexer(pd.Index(link[linked]))
    of_launch = np.full(len(frame), -1.0)
    of_launch[linked] = steps[launch]
    on_gpu = stream > 0
    steps[on_gpu] = of_launch[on_gpu]
    return pd.to_numeric(pd.Series(steps, frame.index), downcast="integer")


def _steps_at(frame: pd.DataFrame, symbols: Sequence[str]) -> NDArray[np.int64]:
    numbers = {i: int(found[1]) for i, found in enumerate(map(_STEP.match, symbols)) if found}
    marks = frame.loc[frame["name"].isin(numbers), ["ts", "dur", "name"]]
    starts = frame["ts"].to_numpy()
    order = np.argsort(starts, kind="stable")
    in_order = starts[order]
    steps = np.full(len(frame), -1, np.int64)
    for start, length, name in marks.itertuples(index=False):
        first, last = np.searchsorted(in_order, (start, start + length))
        steps[order[first:last]] = numbers[name]
    return steps
