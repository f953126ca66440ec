"""HTA with its own loader, for comparison with dptrace's."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from dptrace.errors import install_command
from dptrace.hta.trace_analysis import analysis_of, silence_hta
from tests.support.real_traces import real

needs_hta = pytest.mark.skipif(
    importlib.util.find_spec("hta") is None, reason=f"HTA is not installed ({install_command('hta')})"
)

_H100 = "sharded_h100_8ranks/Baseline - 12-11 - "
RUNS = {
    "ddp_a100": ["ddp_a100_rank0of2"],
    "dlrm_v100": ["dlrm_v100_4ranks"],
    "sharded_h100": [f"{_H100}e049e-rank0-chrome-trace.json.gz", f"{_H100}6bd4b-rank1-chrome-trace.json.gz"],
    "ddp_mi300": ["ddp_mi300_rank0of8"],
}
"""Runs by a short name: the files of the trace collection that dptrace reads."""


def paths_of(run: str) -> list[str]:
    return [real(name) for name in RUNS[run]]


def own_trace(files: dict[int, str]) -> Any:
    """Load files by rank with HTA's loader, parsed and filtered."""
    import hta.common.trace as module

    with silence_hta(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "transform_correlation_to_index", _roomy(module.transform_correlation_to_index))
        trace = module.Trace(trace_files=dict(files), trace_dir="/")
        trace.load_traces(use_multiprocessing=False)
    return trace


def _roomy(transform: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Fix HTA 0.6.1 for pandas 3: it writes file positions into a column that is too narrow for them."""

    def with_room(frame: Any, symbols: Any) -> Any:
        kind = frame["correlation"].dtype
        frame["correlation"] = frame["correlation"].astype("int64")
        frame = transform(frame, symbols)
        frame["correlation"] = frame["correlation"].astype(kind)
        return frame

    return with_room


@cache
def both(run: str) -> tuple[Any, Any]:
    """Return HTA's TraceAnalysis of a run, with its own loader and with dptrace's."""
    from dptrace.hta.trace_analysis import hta_analysis
    from dptrace.readers.discovery import find

    ours = hta_analysis(find(paths_of(run)))
    return analysis_of(own_trace(ours.t.trace_files)), ours
