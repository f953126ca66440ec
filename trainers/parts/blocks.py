"""Wrappers around every block of a model: lower precision, checkpointed activations, compilation.

They wrap each block and not the model, as is usual for large models: hooks on the gradients of a block still run as
soon as backward has passed it, and a pipeline can split between blocks.
"""

from __future__ import annotations

import shutil
from collections import Counter
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dptrace.errors import UsageError
from dptrace.record import Options

__all__ = ["layers_of", "prepare"]

_AMP = {"bf16": torch.bfloat16, "fp16": torch.float16}


def prepare(model: nn.Sequential, options: Options, device: str) -> nn.Sequential:
    """Wrap each block of *model*, in place, as the options say.

    Raises:
        UsageError: --compile on CPU without a C++ compiler.
    """
    if options.compile and device == "cpu" and not any(map(shutil.which, ("g++", "c++", "clang++"))):
        raise UsageError("--compile: torch.compile needs a C++ compiler on CPU (Debian: apt-get install g++).")
    recomputed = _recomputed(model, options)
    for block in model:
        if options.amp is not None:
            block.forward = torch.autocast(device, _AMP[options.amp])(block.forward)
        if block in recomputed:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        if options.compile:
            block.compile()
    return model


def _recomputed(model: nn.Sequential, options: Options) -> list[nn.Module]:
    """Return the blocks whose activations backward computes again: all equal ones, or every k-th, from the first on."""
    if not options.checkpoint_activations and options.checkpoint_activations_every is None:
        return []
    return layers_of(model)[:: options.checkpoint_activations_every or 1]


def layers_of(model: nn.Sequential) -> list[nn.Module]:
    """Return the equal blocks of a model, without what it begins and ends with."""
    (kind, _), *_ = Counter(map(type, model)).most_common(1)
    return [block for block in model if type(block) is kind]
