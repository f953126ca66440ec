"""Record training: the launcher behind ``dptrace record``, and the functions with which a loop records itself.

>>> from dptrace.record import phase, record
>>> with record("runs/mine", steps=5, warmup=3) as recording:    # doctest: +SKIP
...     for batch in loader:
...         with phase("forward"):
...             loss = model(batch)
...         loss.backward()
...         optimizer.step()
...         recording.step()
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from dptrace.errors import MissingExtraError

if TYPE_CHECKING:
    from dptrace.record.distributed import World, assert_in_sync, process_group, save_parameters
    from dptrace.record.integrations.huggingface import TrainerCallback
    from dptrace.record.integrations.lightning import LightningCallback
    from dptrace.record.integrations.trace_handler import trace_handler
    from dptrace.record.marks import phase
    from dptrace.record.options.catalog import Options, parse_options
    from dptrace.record.recording import Recording, record
    from dptrace.record.script.explicit_step import step

__all__ = [
    "LightningCallback",
    "Options",
    "Recording",
    "TrainerCallback",
    "World",
    "assert_in_sync",
    "parse_options",
    "phase",
    "process_group",
    "record",
    "save_parameters",
    "step",
    "trace_handler",
]

_HOMES = {
    **dict.fromkeys(("World", "assert_in_sync", "process_group", "save_parameters"), "distributed"),
    **dict.fromkeys(("Options", "parse_options"), "options.catalog"),
    **dict.fromkeys(("Recording", "record"), "recording"),
    "phase": "marks",
    "step": "script.explicit_step",
    "TrainerCallback": "integrations.huggingface",
    "LightningCallback": "integrations.lightning",
    "trace_handler": "integrations.trace_handler",
}


def on_first_use(package: str, homes: Mapping[str, str], wanted: str) -> Callable[[str], Any]:
    """Return the ``__getattr__`` of a package whose modules need torch, which reading does not: it imports them.

    Args:
        homes: the module of each name, within the package.
        wanted: what does not work without torch.
    """

    def imported(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise MissingExtraError(f"{wanted} needs torch", "record") from None

    return imported


__getattr__ = on_first_use(__name__, _HOMES, "Recording")
