"""What a mixture of experts may be asked for, and what must divide.

What meshes of tensor, pipeline and data parallel ranks may be asked for, checked before any process is started.

What a pipeline's schedules ask for, checked before any process is started.

What data parallelism may be asked for: how replicas compress, accumulate and group, and what must divide."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from math import gcd
from typing import Any

from dptrace.errors import UsageError
from dptrace.record.options.models import MODELS

__all__ = [
    "COMPRESSIONS",
    "EXPERTS",
    "MICRO_BATCHES",
    "PIPELINE",
    "POWERSGD_RANK",
    "SCHEDULES",
    "STATEFUL_COMPRESSIONS",
    "TENSOR",
    "TOPK_RATIO",
    "TOP_K",
    "check_compression",
    "check_experts",
    "check_mesh",
    "check_micro_batches",
    "check_nodes",
    "check_pipeline",
    "check_replicas",
    "parse_ratio",
]

EXPERTS, TOP_K = 8, 2
"""Experts of a block on all ranks together, and how many of them a token is sent to, unless told otherwise."""


def check_experts(options: Mapping[str, Any], ranks: int) -> None:
    """Refuse before any process starts what can't be shared out.

    Args:
        options: by the names of their attributes; None for what was not given.

    Raises:
        UsageError: the message says what would do.
    """
    experts, top_k = options["experts"] or EXPERTS, options["top_k"] or TOP_K
    if experts % ranks:
        above = (experts // ranks + 1) * ranks
        raise UsageError(f"--experts {experts} does not divide over {ranks} ranks; {above} would.")
    if not top_k <= experts:
        raise UsageError(f"--top-k {top_k}: there are {experts} experts of a block; --experts N gives more.")


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
    shares = gcd(model.tp_units, model.context) if mode == "tp-sp" else model.tp_units
    if shares % tensor:
        fitting = [str(size) for size in range(1, tensor + 1) if shares % size == 0]
        option = "--gpus" if mode in ("tp", "tp-sp") else "--tp"
        raise UsageError(f"--model {name} does not divide over {tensor} ranks; {option} {' or '.join(fitting)} would.")


def _check_batch(batch: int, replicas: int, parts: int) -> None:
    least = replicas * parts
    if batch % least:
        into = f"{replicas} replicas" + f" of {parts} micro-batches each" * (parts > 1)
        raise UsageError(f"--batch-size {batch} does not divide into {into}; {-(-batch // least) * least} would.")


SCHEDULES = ("naive", "gpipe", "1f1b", "interleaved", "zero-bubble")
"""By name, in the order in which to read them: each wastes less than the one before, or keeps less."""
_SEVERAL = ("interleaved", "zero-bubble")
"""Schedules that give a rank several stages."""


def check_pipeline(options: dict[str, Any], ranks: int) -> None:
    """Fill in what was not said of micro-batches and virtual stages, and refuse what no schedule can do.

    Args:
        options: as given; ``schedule``, ``micro_batches``, ``virtual_stages`` and ``batch_size`` are looked at.
        ranks: of the pipeline.

    Raises:
        UsageError: the message says what would do.
    """
    schedule = options["schedule"] or "1f1b"
    stages = options["virtual_stages"]
    if stages is None:
        stages = 2 if schedule == "interleaved" else 1
    elif stages < 1:
        raise UsageError(f"--virtual-stages {stages}: each rank needs a stage.")
    if stages > 1 and schedule not in _SEVERAL:
        raise UsageError(
            f"--virtual-stages: --schedule {schedule} has one stage on each rank; interleaved has several."
        )
    if schedule == "interleaved" and stages == 1:
        raise UsageError("--schedule interleaved with --virtual-stages 1 is 1f1b; give 2 or more.")
    parts = options["micro_batches"]
    parts = _ENOUGH * ranks if parts is None else parts
    _check_micro_batches(schedule, parts, ranks, options["batch_size"])
    options |= {"schedule": schedule, "virtual_stages": stages, "micro_batches": parts}


def _check_micro_batches(schedule: str, parts: int, ranks: int, batch: int) -> None:
    if parts < 1:
        raise UsageError(f"--micro-batches {parts}: there must be one.")
    if batch % parts:
        raise UsageError(
            f"--batch-size {batch} does not divide into {parts} micro-batches; {-(-batch // parts) * parts} would."
        )
    if schedule == "1f1b" and parts < ranks:
        raise UsageError(f"--micro-batches {parts}: --schedule 1f1b needs as many as there are ranks, {ranks}.")
    rounds = max(1, parts // ranks)
    if schedule in _SEVERAL and parts % rounds:
        raise UsageError(
            f"--micro-batches {parts}: --schedule {schedule} goes in rounds of one for each of {ranks} ranks; "
            f"{parts // ranks * ranks} or {-(-parts // ranks) * ranks} would do."
        )


COMPRESSIONS = ("none", "fp16", "bf16", "powersgd", "topk", "int8")
STATEFUL_COMPRESSIONS = ("powersgd", "topk", "int8")
"""Those that add what a message left out to the next gradient: each rank keeps something of its own."""
MICRO_BATCHES = 4
"""Of each rank, unless told otherwise."""
POWERSGD_RANK = 2
"""As torch's documentation suggests to begin: 1, then twice as much until training is as good as without."""
TOPK_RATIO = 0.01


def parse_ratio(text: str) -> float:
    """Read a share above 0 and up to 1, and refuse all else with ValueError."""
    if not 0 < float(text) <= 1:
        raise ValueError(f"{text} is not above 0 and at most 1")
    return float(text)


def check_replicas(mode: str, options: Mapping[str, Any], ranks: int) -> None:
    """Refuse before any process starts what a data parallel mode can't do on so many ranks.

    Args:
        options: by the names of their attributes; None for what was not given, but for ``batch_size``.

    Raises:
        UsageError: the message says what would do.
    """
    if mode == "accumulate":
        parts = options["micro_batches"]
        check_micro_batches(options["batch_size"], ranks, MICRO_BATCHES if parts is None else parts)
    if mode in ("hierarchical", "hsdp") and options["ranks_per_node"] is not None:
        check_nodes(ranks, options["ranks_per_node"])


def check_compression(options: Mapping[str, Any]) -> None:
    """Refuse options of one compression with another, and what none can compress.

    Raises:
        UsageError: the message says which.
    """
    chosen = options.get("compress") or "none"
    for name, compression in (("topk_ratio", "topk"), ("powersgd_rank", "powersgd")):
        if options.get(name) is not None and chosen != compression:
            raise UsageError(f"--{name.replace('_', '-')} means nothing without --compress {compression}.")
    if chosen == "powersgd" and options.get("amp") == "fp16":
        raise UsageError(
            "--compress powersgd keeps what it left out, and would keep the infinite gradients by which --amp fp16 "
            "finds its scale: every later step would be lost. Use --amp bf16, or --compress topk or int8."
        )


def check_micro_batches(batch_size: int, ranks: int, micro_batches: int) -> None:
    """Make sure that all micro-batches of all ranks are of one size, so that the mean of their means is the mean.

    Raises:
        UsageError: the batch does not divide.
    """
    if micro_batches < 1:
        raise UsageError(f"--micro-batches {micro_batches}: there must be one.")
    parts = ranks * micro_batches
    if batch_size % parts:
        raise UsageError(
            f"--batch-size {batch_size} does not divide into --micro-batches {micro_batches} on each of {ranks} ranks; "
            f"{max(batch_size // parts, 1) * parts} would."
        )


def check_nodes(ranks: int, per_node: int) -> None:
    """Make sure that every node has as many ranks.

    Raises:
        UsageError: the ranks do not divide.
    """
    if per_node < 1 or ranks % per_node:
        fitting = [str(size) for size in range(1, ranks + 1) if ranks % size == 0]
        raise UsageError(f"--ranks-per-node {per_node}: {ranks} ranks divide into nodes of {', '.join(fitting)}.")
