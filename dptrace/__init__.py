"""dptrace: where the time of a multi-GPU training step goes, computed from recorded traces.

>>> import dptrace
>>> run = dptrace.open("runs/interleaved")      # doctest: +SKIP
>>> run.steps()                                  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dptrace.api import (
    advise,
    compare,
    critical_path,
    explain,
    export_trace,
    figure,
    hta_analysis,
    memory,
    open,
    predict,
    predict_message,
    show,
    whatif,
)
from dptrace.errors import DptraceError, MissingExtraError, RecordingError, TraceError, UsageError
from dptrace.version import __version__

if TYPE_CHECKING:
    from dptrace import record
    from dptrace.comparison.compare import Comparison
    from dptrace.run.run import Run

__all__ = [
    "Comparison",
    "DptraceError",
    "MissingExtraError",
    "RecordingError",
    "Run",
    "TraceError",
    "UsageError",
    "__version__",
    "advise",
    "compare",
    "critical_path",
    "explain",
    "export_trace",
    "figure",
    "hta_analysis",
    "memory",
    "open",
    "predict",
    "predict_message",
    "record",
    "show",
    "whatif",
]


def __getattr__(name: str) -> object:
    # Imported on first use, so that `import dptrace` loads neither NumPy nor pandas.
    if name == "Run":
        from dptrace.run.run import Run

        return Run
    if name == "Comparison":
        from dptrace.comparison.compare import Comparison

        return Comparison
    if name == "record":
        import importlib

        return importlib.import_module("dptrace.record")  # dptrace.record.step() needs no import of its own
    raise AttributeError(f"module 'dptrace' has no attribute {name!r}")
