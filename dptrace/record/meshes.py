"""What meshes of tensor, pipeline and data parallel ranks may be asked for, checked before any process is started."""

from __future__ import annotations

from collections.abc import MutableMapping
from math import gcd
from typing import Any

from dptrace.errors import UsageError
from dptrace.record.models import MODELS

__all__ = ["PIPELINE", "TENSOR", "check_mesh"]

TENSOR, PIPELINE = 2, 2
"""Ranks that share a layer, and stages of a pipeline, unless told otherwise."""
_ENOUGH = 4
"""Micro-batches for each stage, as in a pipeline alone."""


def check_mesh(options: MutableMapping[str, Any], ranks: int) -> None:
    """Fill in what was not said of the mesh, and refuse what does not divide.

    Args:
        options: by the names of their attributes, None for what was not given; but ``mode``, ``model`` and
            ``batch_size`` must be there.
        ranks: all of them.

    Raises:
        UsageError: the message says what would do.
    """
    mode = options["mode"]
    tensor = ranks if mode in ("tp", "tp-sp") else options["tp"] or TENSOR
    stages = options["pp"] or PIPELINE if mode == "3d" else 1
    row = tensor * stages
    if ranks % row:
        size = f"--tp {tensor}" + f" and --pp {stages}" * (mode == "3d")
        raise UsageError(f"--mode {mode} with {size} needs a multiple of {row} ranks, and there are {ranks}.")
    _check_model(mode, options["model"], tensor)
    options["tp"], options["pp"] = tensor, stages
    parts = 1
    if mode == "3d":
        parts = _ENOUGH * stages if options["micro_batches"] is None else options["micro_batches"]
        if parts < stages:
            raise UsageError(f"--micro-batches {parts}: 1F1B needs as many as there are stages, {stages}.")
        options["micro_batches"] = parts
    _check_batch(options["batch_size"], ranks // row, parts)


def _check_model(mode: str, name: str, tensor: int) -> None:
    model = MODELS[name]
    shares = gcd(model.shares, model.context) if mode == "tp-sp" else model.shares
    if shares % tensor:
        fitting = [str(size) for size in range(1, tensor + 1) if shares % size == 0]
        option = "--gpus" if mode in ("tp", "tp-sp") else "--tp"
        raise UsageError(f"--model {name} does not divide over {tensor} ranks; {option} {' or '.join(fitting)} would.")


def _check_batch(batch: int, replicas: int, parts: int) -> None:
    least = replicas * parts
    if batch % least:
        into = f"{replicas} replicas" + f" of {parts} micro-batches each" * (parts > 1)
        raise UsageError(f"--batch-size {batch} does not divide into {into}; {-(-batch // least) * least} would.")
