"""A model in PyTorch's DistributedDataParallel, with the settings that were asked for."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from dptrace.record import Options
from dptrace.trainers.parts.compress import compress

__all__ = ["replicated"]


def replicated(model: nn.Module, options: Options) -> DistributedDataParallel:
    """Wrap a model; where nothing was asked for, DDP's own defaults hold."""
    flags = ("static_graph", "gradient_as_bucket_view", "find_unused_parameters")
    # Not every mode has all of them: DDP can't skip the reduction of its first backward if the graph is static.
    settings: dict[str, Any] = {flag: True for flag in flags if getattr(options, flag, False)}
    if options.bucket_cap_mb is not None:
        settings["bucket_cap_mb"] = options.bucket_cap_mb
    wrapped = DistributedDataParallel(model, **settings)
    compress(wrapped, options)
    return wrapped
