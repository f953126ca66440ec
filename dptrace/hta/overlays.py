"""Write HTA's results into a copy of the trace, for Perfetto."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from dptrace.core.files import check_output
from dptrace.errors import UsageError

__all__ = ["check_overlay", "frequent_sequences"]

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
