"""Checks of the options that depend on the number of ranks or on each other, made before any process starts.

Each takes the options by attribute name, with their declared defaults, and raises UsageError, whose message suggests
what works. ``check_ranks`` also sets the defaults that depend on the number of ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from math import gcd
from typing import Any

from dptrace.errors import UsageError
from dptrace.record.options.modes import MODELS, MODES

SAMPLES = 32_768
"""Samples in the synthetic data."""
MICRO_BATCHES = 4
"""Default micro-batches of each rank, or of each stage of a pipeline."""

_MULTI_STAGE_SCHEDULES = ("interleaved", "zero-bubble")
"""Schedules that can put several stages on a rank."""

STATEFUL_COMPRESSIONS = ("powersgd", "topk", "randomk", "threshold", "int8", "int4", "qsgd")
"""Those with a state of their own on each rank: what messages left out, to add to the next gradient, or random
numbers."""
COMPRESSION_DEFAULTS: dict[str, tuple[str, float]] = {
    "topk_ratio": ("topk", 0.01),
    "randomk_ratio": ("randomk", 0.01),
    "threshold": ("threshold", 0.001),
    "qsgd_levels": ("qsgd", 7),
    "powersgd_rank": ("powersgd", 2),
}
"""The option of a compression, its name and the default. Of PowerSGD's rank, torch's documentation suggests to start
with 1 and to double it until training is as good as without."""


def check_ranks(mode: str, options: MutableMapping[str, Any], ranks: int) -> None:
    """Check that a mode can run with these options on this number of ranks, and set defaults that depend on it.

    Args:
        options: ``model`` and ``batch_size`` must not be None.

    Raises:
        UsageError: it cannot; the message suggests values that work.
    """
    traits = MODES[mode].traits
    if MODES[mode].single_gpu and ranks > 1:
        raise UsageError(f"{mode} trains on one GPU: start one process.")
    check_batch(options["batch_size"], 1 if "whole batch" in traits else ranks)
    check_replicas(mode, options, ranks)
    if options.get("ranks_per_node") is not None:
        check_nodes(ranks, options["ranks_per_node"])
    if "schedule" in traits:
        _check_pipeline(options, ranks)
    if "tensor" in traits:
        _check_mesh(mode, options, ranks)
    if "experts" in traits:
        expert_ranks = _check_expert_ranks(options, ranks) if "expert mesh" in traits else ranks
        _check_divisible("experts", options["experts"], expert_ranks, f"{expert_ranks} ranks")
        if options["top_k"] > options["experts"]:
            raise UsageError(
                f"--top-k {options['top_k']} is more than the {options['experts']} experts of a block; raise --experts."
            )


def _check_divisible(option: str, number: int, divisor: int, parts: str) -> None:
    if number % divisor:
        above = -(-number // divisor) * divisor
        raise UsageError(f"--{option} {number} must be divisible by {parts}; try {above}.")


def _micro_batches(options: MutableMapping[str, Any], default: int) -> int:
    """Set the default, and return the number."""
    parts: int = default if options["micro_batches"] is None else options["micro_batches"]
    if parts < 1:
        raise UsageError(f"--micro-batches {parts}: must be at least 1.")
    options["micro_batches"] = parts
    return parts


def _divisors(number: int, maximum: int) -> list[str]:
    return [str(size) for size in range(1, maximum + 1) if number % size == 0]


def check_batch(batch_size: int, ranks: int) -> None:
    """Check that every rank gets the same number of samples, so that the mean of the ranks' means is the mean."""
    if not 1 <= batch_size <= SAMPLES:
        raise UsageError(f"--batch-size {batch_size}: must be from 1 to {SAMPLES}, the number of samples.")
    if batch_size % ranks:
        below, above = batch_size // ranks * ranks, (batch_size // ranks + 1) * ranks
        fitting = f"{below} or {above}" if below else str(above)
        raise UsageError(f"--batch-size {batch_size} must be divisible by {ranks} ranks; try {fitting}.")


def _check_expert_ranks(options: MutableMapping[str, Any], ranks: int) -> int:
    """Set the default of ``ep``, check that it fits the mesh, and return it."""
    shards = ranks // (options["tp"] * options["pp"])
    expert_ranks = shards if options.get("ep") is None else options["ep"]
    if shards % expert_ranks:
        mesh = f"{ranks} ranks with --tp {options['tp']} and --pp {options['pp']}"
        fitting = " or ".join(_divisors(shards, shards))
        raise UsageError(f"--ep {expert_ranks}: {mesh} split the batch into {shards}; try --ep {fitting}.")
    options["ep"] = expert_ranks
    return int(expert_ranks)


def _check_mesh(mode: str, options: MutableMapping[str, Any], ranks: int) -> None:
    """Set ``tp``, ``pp`` and the default of ``micro_batches``; check that model and batch fit the mesh."""
    traits = MODES[mode].traits
    tensor = options["tp"] if "mesh" in traits else ranks
    stages = options["pp"] if "stages" in traits else 1
    row = tensor * stages
    if ranks % row:
        size = f"--tp {tensor}" + f" and --pp {stages}" * ("stages" in traits)
        raise UsageError(f"--mode {mode} with {size} needs a multiple of {row} ranks, not {ranks}.")
    model = MODELS[options["model"]]
    units = gcd(model.tp_units, model.context) if "sequence" in traits else model.tp_units
    if units % tensor:
        fitting = f"{'--tp' if 'mesh' in traits else '--gpus'} {' or '.join(_divisors(units, tensor))}"
        raise UsageError(f"--model {options['model']} cannot be split over {tensor} ranks; try {fitting}.")
    options["tp"], options["pp"] = tensor, stages
    parts = 1
    if "stages" in traits:
        parts = _micro_batches(options, MICRO_BATCHES * stages)
        if parts < stages:
            raise UsageError(f"--micro-batches {parts}: 1F1B needs at least one for each of the {stages} stages.")
    replicas = ranks // row
    splits = f"{replicas} replicas" + f" with {parts} micro-batches each" * (parts > 1)
    _check_divisible("batch-size", options["batch_size"], replicas * parts, f"{replicas * parts} ({splits})")


def _check_pipeline(options: MutableMapping[str, Any], ranks: int) -> None:
    """Set the defaults of ``virtual_stages`` and ``micro_batches``, and check that they fit."""
    schedule, stages = options["schedule"], options["virtual_stages"]
    if stages is None:
        stages = 2 if schedule == "interleaved" else 1
    elif stages < 1:
        raise UsageError(f"--virtual-stages {stages}: each rank needs at least 1 stage.")
    if stages > 1 and schedule not in _MULTI_STAGE_SCHEDULES:
        raise UsageError(
            f"--virtual-stages {stages}: --schedule {schedule} has one stage on each rank; use --schedule interleaved."
        )
    if schedule == "interleaved" and stages == 1:
        raise UsageError("--schedule interleaved with --virtual-stages 1 is 1f1b; use 2 or more.")
    parts = _micro_batches(options, MICRO_BATCHES * ranks)
    _check_divisible("batch-size", options["batch_size"], parts, f"{parts} micro-batches")
    if schedule == "1f1b" and parts < ranks:
        raise UsageError(f"--micro-batches {parts}: --schedule 1f1b needs at least one for each of {ranks} ranks.")
    if schedule in _MULTI_STAGE_SCHEDULES and parts % max(1, parts // ranks):
        raise UsageError(
            f"--micro-batches {parts}: --schedule {schedule} runs rounds of one micro-batch for each of {ranks} ranks; "
            f"try {parts // ranks * ranks} or {-(-parts // ranks) * ranks}."
        )
    options["virtual_stages"] = stages


def check_replicas(mode: str, options: MutableMapping[str, Any], ranks: int) -> None:
    """Check the micro-batches of DDP's ranks, and set their default.

    All of all ranks have the same size, so that the mean of their means is the mean.
    """
    if {"micro-batches", "ddp"} <= set(MODES[mode].traits):
        parts = _micro_batches(options, MICRO_BATCHES)
        each = f"--micro-batches {parts} on each of {ranks} ranks"
        _check_divisible("batch-size", options["batch_size"], ranks * parts, f"{ranks * parts} ({each})")


def check_nodes(ranks: int, per_node: int) -> None:
    """Check that all nodes have the same number of ranks."""
    if per_node < 1 or ranks % per_node:
        raise UsageError(
            f"--ranks-per-node {per_node}: {ranks} ranks can form nodes of {', '.join(_divisors(ranks, ranks))}."
        )


def check_training(options: Mapping[str, Any]) -> None:
    """Check that options can be combined.

    Args:
        options: by attribute name; None for an option that was not given.

    Raises:
        UsageError: they cannot; the message says which, and why.
    """
    model = options["model"] or "medium"
    _check_recomputation(options, model)
    _check_number_types(options)
    _check_compression(options)
    if options["data"] is not None and model != "resnet18":
        raise UsageError(f"--data: the model {model} trains on synthetic data; only --model resnet18 reads CIFAR-10.")
    samples, batch = options.get("samples"), options.get("batch_size") or MODELS[model].batch_size
    if samples is not None and samples < batch:
        raise UsageError(f"--samples {samples} do not fill a batch of {batch}: give more, or a smaller --batch-size.")
    if options.get("checkpoints") and not (options.get("checkpoint_every") or options.get("resume")):
        raise UsageError("--checkpoints names a folder for --checkpoint-every or --resume: add one of them.")


def _check_recomputation(options: Mapping[str, Any], model: str) -> None:
    every, blocks = options.get("checkpoint_activations_every"), MODELS[model].blocks
    if not blocks and (options.get("checkpoint_activations") or every is not None):
        name = "checkpoint-activations" if every is None else "checkpoint-activations-every"
        raise UsageError(
            f"--{name}: the MLP {model} has no blocks of several layers; use --model resnet18, balanced or gpt-*."
        )
    if every is not None and every > blocks:
        raise UsageError(f"--checkpoint-activations-every {every}: {model} has {blocks} blocks; use 1 to {blocks}.")


def _check_number_types(options: Mapping[str, Any]) -> None:
    if options["amp"] is not None and options["dtype"] not in (None, "float32"):
        raise UsageError(f"--amp keeps the parameters in float32: leave --dtype {options['dtype']} out.")
    mixed = options.get("mixed_precision")
    if options.get("reduce_dtype") is not None and mixed is None:
        raise UsageError("--reduce-dtype has no effect without --mixed-precision: add --mixed-precision bf16 or fp16.")
    if mixed is not None and options.get("amp") is not None:
        raise UsageError(
            f"--mixed-precision {mixed} computes in lower precision already: leave --amp {options['amp']} out, or use "
            "--amp alone to gather parameters in full precision."
        )
    half = {"bfloat16", "float16"} & {options.get("dtype")}
    if mixed is not None and half:
        raise UsageError(f"--mixed-precision keeps the shards in full precision: leave --dtype {half.pop()} out.")


def _check_compression(options: Mapping[str, Any]) -> None:
    chosen = options.get("compress") or "none"
    for name, (compression, _) in COMPRESSION_DEFAULTS.items():
        if options.get(name) is not None and chosen != compression:
            raise UsageError(f"--{name.replace('_', '-')} has no effect without --compress {compression}.")
    if chosen == "powersgd" and options.get("amp") == "fp16":
        raise UsageError(
            "--compress powersgd cannot be used with --amp fp16: it would carry the infinite gradients, by which fp16 "
            "finds its scale, over to every later step. Use --amp bf16, or --compress topk or int8."
        )
    if (options.get("checkpoint_every") or options.get("resume")) and chosen in STATEFUL_COMPRESSIONS:
        raise UsageError(
            f"--compress {chosen} carries errors or random numbers over to the next step, and checkpoints do not "
            "hold them: drop one of the two, or use --compress fp16 or bf16."
        )
