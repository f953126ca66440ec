"""dptrace: where the time of a multi-GPU training step goes, computed from recorded traces.

>>> import dptrace
>>> run = dptrace.open("runs/interleaved")      # doctest: +SKIP
>>> run.steps()                                  # doctest: +SKIP
"""

from __future__ import annotations

from dptrace.errors import AccessError, DptraceError, MissingExtraError, RecordingError, TraceError, UsageError
from dptrace.version import __version__

TYPE_CHECKING = False  # importing typing takes longer than the rest
if TYPE_CHECKING:
    from dptrace import record
    from dptrace.api import (
        Run,
        advise,
        compare,
        critical_path,
        explain,
        export_trace,
        figure,
        figure_svg,
        history,
        hta_analysis,
        memory,
        open,
        open_baseline,
        predict,
        predict_message,
        save_baseline,
        show,
        stage_whatif,
        whatif,
    )
    from dptrace.comparison.compare import Comparison
    from dptrace.flight.hang import find_hang
    from dptrace.watch.session import watch

__all__ = [
    "AccessError",
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
    "figure_svg",
    "find_hang",
    "history",
    "hta_analysis",
    "memory",
    "open",
    "open_baseline",
    "predict",
    "predict_message",
    "record",
    "save_baseline",
    "show",
    "stage_whatif",
    "watch",
    "whatif",
]


def __getattr__(name: str) -> object:
    # Imported on first use: each start of the command line imports this package, and a script may need one function.
    if name not in __all__:
        raise AttributeError(f"module 'dptrace' has no attribute {name!r}")
    import importlib

    if name in ("record", "watch"):
        return importlib.import_module(f"dptrace.{name}")
    elsewhere = {"Comparison": "dptrace.comparison.compare", "find_hang": "dptrace.flight.hang"}
    return getattr(importlib.import_module(elsewhere.get(name, "dptrace.api")), name)


def __dir__() -> list[str]:
    return list({*globals(), *__all__})
