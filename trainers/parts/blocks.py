"""Wrappers around every block of a model: lower precision, checkpointed activations, compilation.

They wrap each block and not the model, as is usual for large models: hooks on the gradients of a block still run as
soon as backward has passed it, and a pipeline can split between blocks.
"""

from __future__ import annotations

import shutil
from functools import partial

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dptrace.errors import UsageError
from dptrace.record import Options

__all__ = ["prepare"]

_AMP = {"bf16": torch.bfloat16, "fp16": torch.float16}


def prepare(model: nn.Sequential, options: Options, device: str) -> nn.Sequential:
    """Wrap each block of *model*, in place, as the options say.

    Raises:
        UsageError: --compile on CPU without a C++ compiler.
    """
    if options.compile and device == "cpu" and not any(map(shutil.which, ("g++", "c++", "clang++"))):
        raise UsageError("--compile: torch.compile needs a C++ compiler on CPU (Debian: apt-get install g++).")
    for block in model:
        if options.amp is not None:
            block.forward = torch.autocast(device, _AMP[options.amp])(block.forward)
        if options.checkpoint_activations:
            block.forward = partial(checkpoint, block.forward, use_reentrant=False)
        if options.compile:
            block.compile()
    return model
