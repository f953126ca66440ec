"""Every option that trainers take, told once: for their own command lines and for ``dptrace record``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dptrace.record.options.models import MODELS
from dptrace.record.options.validation import (
    COMPRESSIONS,
    EXPERTS,
    PIPELINE,
    POWERSGD_RANK,
    SCHEDULES,
    TENSOR,
    TOP_K,
    TOPK_RATIO,
    parse_ratio,
)

__all__ = ["OPTIONS", "REPLICATED", "Option", "positive_int"]


def positive_number(text: str) -> float:
    """Read a number, and refuse with ValueError zero and less, and what no size can be."""
    if not 0 < float(text) < 1e6:
        raise ValueError(f"{text} is not above 0, or beyond all reason")
    return float(text)


def non_negative_number(text: str) -> float:
    """Read zero or more, and refuse with ValueError what is below, no number, or beyond all reason."""
    if not 0 <= float(text) < 1e6:
        raise ValueError(f"{text} is not 0 or above, or beyond all reason")
    return float(text)


def positive_int(text: str) -> int:
    """Read a number from 1 on, and refuse all else with ValueError."""
    if not 1 <= int(text) < 1_000_000:
        raise ValueError(f"{text} is not from 1 to a million")
    return int(text)


def seed_number(text: str) -> int:
    """Read what torch takes for a seed, and refuse all else with ValueError."""
    if not 0 <= int(text) < 1 << 63:
        raise ValueError(f"{text} is not from 0 to 2^63")
    return int(text)


@dataclass(frozen=True, slots=True)
class Option:
    """One option of the trainers."""

    name: str
    type: Callable[[str], Any]
    default: int | float | str | None
    group: str
    """The heading under which --help lists it: a key of ``GROUPS`` in dptrace.commands.record."""
    help: str
    choices: tuple[str, ...] = ()
    modes: tuple[str, ...] = ()
    """The modes for which it means something; empty for all."""

    @property
    def field(self) -> str:
        """Name the attribute that holds it."""
        return self.name.replace("-", "_")

    @property
    def help_text(self) -> str:
        """Give the help with the default, and the modes where it is not for all."""
        text = f"{', '.join(self.modes)}: {self.help}" if 0 < len(self.modes) < _MANY else self.help
        return text if self.default in (None, False) else f"{text} [default: {self.default}]"


_MANY = 4
"""Modes that are named in an option's help; more would hide what it is for."""

_DDP = ("ddp", "accumulate")
_FULLY_SHARDED = ("fsdp", "hsdp")

REPLICATED = ("single", "naive", "interleaved", "ddp", "async-after", "accumulate", "ring", "hierarchical")
"""Modes whose ranks all hold the whole model and the whole state of the optimizer: one rank's checkpoint is all."""

OPTIONS = (
    Option(
        "model",
        str,
        None,
        "first",
        "Model to train: "
        + ", ".join(f"{name} ({model.description})" for name, model in MODELS.items())
        + " [default: medium, or the mode's own].",
        choices=tuple(MODELS),
    ),
    Option("steps", int, 10, "first", "Steps to record."),
    Option(
        "batch-size", int, None, "training", "Samples in a step, over all ranks [default: the model's, 1024 for MLPs]."
    ),
    Option(
        "bucket-cap-mb",
        positive_number,
        None,
        "ddp",
        "DDP's bucket size in MiB [default: DDP's own, 25 with a first bucket of 1].",
        modes=_DDP,
    ),
    Option(
        "compress",
        str,
        "none",
        "ddp",
        "How to shorten what DDP sends: half the bits, a quarter, the largest numbers, or matrices of low rank.",
        choices=COMPRESSIONS,
        modes=_DDP,
    ),
    Option(
        "topk-ratio",
        parse_ratio,
        None,
        "ddp",
        f"Share of the gradient's numbers that --compress topk sends [default: {TOPK_RATIO}].",
        modes=_DDP,
    ),
    Option(
        "powersgd-rank",
        positive_int,
        None,
        "ddp",
        f"Rank of the matrices that --compress powersgd sends [default: {POWERSGD_RANK}].",
        modes=_DDP,
    ),
    Option("static-graph", bool, False, "ddp", "Tell DDP that every step uses the same parameters.", modes=("ddp",)),
    Option(
        "gradient-as-bucket-view",
        bool,
        False,
        "ddp",
        "Let the gradients lie in DDP's buckets, which saves a copy of all of them.",
        modes=_DDP,
    ),
    Option(
        "find-unused-parameters",
        bool,
        False,
        "ddp",
        "Let DDP search in each step for parameters that it does not use.",
        modes=_DDP,
    ),
    Option(
        "ranks-per-node",
        positive_int,
        None,
        "parallel",
        "Ranks that share a fast link [default: those of one machine].",
        modes=("hierarchical", "hsdp"),
    ),
    Option("experts", positive_int, EXPERTS, "parallel", "Experts of a block, on all ranks together.", modes=("moe",)),
    Option("tp", positive_int, TENSOR, "parallel", "Ranks that share each layer.", modes=("dp-tp", "3d")),
    Option("pp", positive_int, PIPELINE, "parallel", "Stages of the pipeline.", modes=("3d",)),
    Option("top-k", positive_int, TOP_K, "parallel", "Experts that each token is sent to.", modes=("moe",)),
    Option(
        "dtype", str, "float32", "training", "Numbers in which to train.", choices=("float32", "bfloat16", "float16")
    ),
    Option(
        "optimizer", str, None, "training", "Optimizer [default: the model's, sgd for MLPs].", choices=("sgd", "adamw")
    ),
    Option("lr", non_negative_number, None, "training", "Learning rate [default: the model's, 0.01 for MLPs]."),
    Option("weight-decay", non_negative_number, None, "training", "Weight decay [default: the model's, 0 for MLPs]."),
    Option(
        "amp",
        str,
        None,
        "training",
        "Forward in lower precision; fp16 with scaled gradients.",
        choices=("bf16", "fp16"),
    ),
    Option("clip-grad", positive_number, None, "training", "Clip the gradients to this norm over all parameters."),
    Option(
        "checkpoint-activations",
        bool,
        False,
        "training",
        "Compute each block's activations again in backward, rather than keep them (resnet18, gpt).",
    ),
    Option("compile", bool, False, "training", "Compile each block with torch.compile."),
    Option("data", str, None, "training", "Folder of CIFAR-10's binary files, for resnet18 [default: made-up images]."),
    Option(
        "prefetch",
        str,
        "default",
        "parallel",
        "When a block's parameters are gathered: when it needs them, torch's way, or one block ahead.",
        choices=("none", "default", "explicit"),
        modes=_FULLY_SHARDED,
    ),
    Option(
        "reshard-after-forward",
        str,
        "yes",
        "parallel",
        "Whether a block's parameters are freed after forward, and gathered again for backward.",
        choices=("yes", "no"),
        modes=_FULLY_SHARDED,
    ),
    Option("schedule", str, "1f1b", "parallel", "Order of forwards and backwards.", choices=SCHEDULES, modes=("pp",)),
    Option(
        "micro-batches",
        int,
        None,
        "parallel",
        "Micro-batches that a step's batch is cut into [default: 4 for each rank].",
        modes=("accumulate", "pp", "3d"),
    ),
    Option(
        "virtual-stages",
        int,
        None,
        "parallel",
        "Stages on each rank, with --schedule interleaved or zero-bubble [default: 2 of interleaved, else 1].",
        modes=("pp",),
    ),
    Option("seed", seed_number, 42, "training", "Seed of the data and of the first parameters."),
    Option("warmup", int, 3, "recording", "Warm-up steps before the timed and before the recorded steps; at least 2."),
    Option(
        "wait",
        int,
        None,
        "recording",
        "Steps before the profiler starts; the last of them are timed without it [default: warmup + steps].",
    ),
    Option(
        "checkpoint-every",
        positive_int,
        None,
        "faults",
        "Write a checkpoint after every so many steps; for modes whose ranks all hold the whole model.",
        modes=REPLICATED,
    ),
    Option(
        "checkpoints",
        str,
        None,
        "faults",
        "Folder of the checkpoints; the last two are kept [default: checkpoints/MODE].",
        modes=REPLICATED,
    ),
    Option("resume", bool, False, "faults", "Go on from the last checkpoint in that folder.", modes=REPLICATED),
    Option("out", str, None, "recording", "Folder for the run [default: runs/MODE, or runs/SCRIPT's name]."),
    Option("save-parameters", str, None, "recording", "Save the parameters after the last step to this .npz file."),
)
"""All options that trainers take, in the order of --help; ``--force`` is a flag beside them."""
