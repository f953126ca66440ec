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
from typing import TYPE_CHECKING

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


def __getattr__(name: str) -> object:
    # Imported on first use, so that reading traces does not need torch.
    if name not in _HOMES:
        raise AttributeError(f"module 'dptrace.record' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"dptrace.record.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError("Recording needs torch", "record") from None
