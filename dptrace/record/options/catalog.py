"""Every option of the trainers, declared once: its type, default, help and the modes that take it.

The trainers' own command lines (``parse.parse_options``), ``dptrace record`` and run.json all follow this declaration.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from dptrace.record.options.models import MODELS
from dptrace.record.options.modes import REPLICATED, Trait, modes_with
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

__all__ = ["OPTIONS", "REPLICATED", "Option", "TrainerOptions", "positive_int"]


def positive_number(text: str) -> float:
    """Read a number above 0 and below a million; raise ValueError for anything else."""
    if not 0 < float(text) < 1e6:
        raise ValueError(f"{text} is not above 0 and below 1,000,000")
    return float(text)


def non_negative_number(text: str) -> float:
    """Read a number from 0 to below a million; raise ValueError for anything else."""
    if not 0 <= float(text) < 1e6:
        raise ValueError(f"{text} is not 0 or above and below 1,000,000")
    return float(text)


def positive_int(text: str) -> int:
    """Read a whole number from 1 to below a million; raise ValueError for anything else."""
    if not 1 <= int(text) < 1_000_000:
        raise ValueError(f"{text} is not from 1 to 999,999")
    return int(text)


def seed_number(text: str) -> int:
    """Read a seed that torch accepts; raise ValueError for anything else."""
    if not 0 <= int(text) < 1 << 63:
        raise ValueError(f"{text} is not from 0 to 2^63 - 1")
    return int(text)


@dataclass(eq=False)
class Option:
    """One option of the trainers: how it is read, what it means, and which modes take it.

    As a class attribute, it holds the default of every object that does not set the attribute.
    """

    type: Callable[[str], Any]
    """How to read its text; ``bool`` for a flag. A ValueError says why a text is refused."""
    default: int | float | str | None
    group: str
    """The heading under which --help lists it: a key of ``_HEADINGS`` in dptrace.commands.record."""
    help: str
    choices: tuple[str, ...] = ()
    metavar: str = "N"
    """What --help shows for its value."""
    trait: Trait | None = None
    """The trait of the modes that take it; None if all do."""
    same_on_resume: bool = False
    """Whether a training can continue from a checkpoint only with the same value."""
    in_run_options: Literal["always", "if given", "never"] = "always"
    """When run.json lists it under ``options``: never if it has a key of its own or does not affect the training."""
    field: str = ""
    """Name of the attribute that it is assigned to."""

    def __set_name__(self, owner: object, name: str) -> None:
        self.field = name

    def __get__(self, instance: object, owner: object) -> Any:
        return self if instance is None else self.default

    @property
    def name(self) -> str:
        """Its name on the command line, without the dashes."""
        return self.field.replace("_", "-")

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes that take it; empty if all do."""
        return () if self.trait is None else modes_with(self.trait)

    @property
    def help_text(self) -> str:
        """The help with the default, and with the modes if they are few."""
        text = f"{', '.join(self.modes)}: {self.help}" if 0 < len(self.modes) < _MANY else self.help
        return text if self.default in (None, False) else f"{text} [default: {self.default}]"


_MANY = 4
"""From this many modes on, an option's help does not list them: the list would hide the text."""
_MODEL_HELP = "Model to train: " + ", ".join(f"{name} ({model.description})" for name, model in MODELS.items())

option: Callable[..., Any] = Option
"""The same for type checkers: an attribute has the type of its annotation."""


class TrainerOptions(argparse.Namespace):
    """The options of one training, in the order of --help. To add an option, add an attribute."""

    model: str = option(
        str,
        None,
        "first",
        f"{_MODEL_HELP} [default: medium, or the mode's own].",
        choices=tuple(MODELS),
        same_on_resume=True,
    )
    steps: int = option(int, 10, "first", "Steps to record.", in_run_options="never")
    batch_size: int = option(
        int,
        None,
        "training",
        "Samples in a step, over all ranks [default: the model's, 1024 for MLPs].",
        same_on_resume=True,
    )
    bucket_cap_mb: float | None = option(
        positive_number,
        None,
        "ddp",
        "DDP's bucket size in MiB [default: DDP's own, 25 with a first bucket of 1].",
        trait="ddp",
    )
    compress: str = option(
        str,
        "none",
        "ddp",
        "How to compress DDP's gradients: to 16 bits, to 8 bits, to the largest values, or to low-rank matrices.",
        choices=COMPRESSIONS,
        trait="ddp",
        same_on_resume=True,
    )
    topk_ratio: float | None = option(
        parse_ratio,
        None,
        "ddp",
        f"Share of the gradient's values that --compress topk sends [default: {TOPK_RATIO}].",
        trait="ddp",
    )
    powersgd_rank: int | None = option(
        positive_int,
        None,
        "ddp",
        f"Rank of the matrices that --compress powersgd sends [default: {POWERSGD_RANK}].",
        trait="ddp",
    )
    static_graph: bool = option(
        bool, False, "ddp", "Tell DDP that every step uses the same parameters.", trait="one backward"
    )
    gradient_as_bucket_view: bool = option(
        bool, False, "ddp", "Store the gradients in DDP's buckets, which saves a copy of all of them.", trait="ddp"
    )
    find_unused_parameters: bool = option(
        bool, False, "ddp", "Let DDP search each step for parameters that it does not use.", trait="ddp"
    )
    ranks_per_node: int | None = option(
        positive_int, None, "parallel", "Ranks that share a fast link [default: those of one machine].", trait="nodes"
    )
    experts: int = option(positive_int, EXPERTS, "parallel", "Experts in each block, over all ranks.", trait="experts")
    tp: int = option(positive_int, TENSOR, "parallel", "Ranks that share each layer.", trait="mesh")
    pp: int = option(positive_int, PIPELINE, "parallel", "Stages of the pipeline.", trait="stages")
    top_k: int = option(positive_int, TOP_K, "parallel", "Experts that each token is sent to.", trait="experts")
    dtype: str = option(
        str,
        "float32",
        "training",
        "Number type of parameters and gradients; float64 compares trainings without float32's rounding.",
        choices=("float32", "float64", "bfloat16", "float16"),
        same_on_resume=True,
    )
    optimizer: str = option(
        str,
        None,
        "training",
        "Optimizer [default: the model's, sgd for MLPs].",
        choices=("sgd", "adamw"),
        same_on_resume=True,
    )
    lr: float = option(
        non_negative_number,
        None,
        "training",
        "Learning rate [default: the model's, 0.01 for MLPs].",
        same_on_resume=True,
    )
    weight_decay: float = option(
        non_negative_number, None, "training", "Weight decay [default: the model's, 0 for MLPs].", same_on_resume=True
    )
    amp: str | None = option(
        str,
        None,
        "training",
        "Run forward in lower precision; fp16 scales the gradients.",
        choices=("bf16", "fp16"),
        same_on_resume=True,
    )
    clip_grad: float | None = option(
        positive_number, None, "training", "Clip the gradients to this norm over all parameters.", same_on_resume=True
    )
    checkpoint_activations: bool = option(
        bool,
        False,
        "training",
        "Recompute each block's activations in backward instead of keeping them (resnet18, gpt).",
    )
    compile: bool = option(bool, False, "training", "Compile each block with torch.compile.")
    data: str | None = option(
        str,
        None,
        "training",
        "Folder with CIFAR-10's binary files, for resnet18 [default: synthetic images].",
        metavar="FOLDER",
    )
    prefetch: str = option(
        str,
        "default",
        "parallel",
        "When a block's parameters are gathered: when it needs them, torch's way, or one block ahead.",
        choices=("none", "default", "explicit"),
        trait="fully sharded",
    )
    reshard_after_forward: str = option(
        str,
        "yes",
        "parallel",
        "Whether to free a block's parameters after forward and gather them again for backward.",
        choices=("yes", "no"),
        trait="fully sharded",
    )
    schedule: str = option(
        str, "1f1b", "parallel", "Order of forwards and backwards.", choices=SCHEDULES, trait="schedule"
    )
    micro_batches: int = option(
        int,
        None,
        "parallel",
        "Micro-batches that the batch of a step is split into [default: 4 for each rank].",
        trait="micro-batches",
    )
    virtual_stages: int = option(
        int,
        None,
        "parallel",
        "Stages on each rank, with --schedule interleaved or zero-bubble [default: 2 for interleaved, else 1].",
        trait="schedule",
    )
    seed: int = option(
        seed_number, 42, "training", "Seed of the data and of the initial parameters.", same_on_resume=True
    )
    warmup: int = option(
        int,
        3,
        "recording",
        "Warm-up steps before the timed and before the recorded steps; at least 2.",
        in_run_options="never",
    )
    wait: int | None = option(
        int,
        None,
        "recording",
        "Steps before the profiler starts; the last of them are timed without it [default: warmup + steps].",
        in_run_options="never",
    )
    checkpoint_every: int | None = option(
        positive_int,
        None,
        "faults",
        "Write a checkpoint every N steps; for modes whose ranks all hold the whole model.",
        trait="replicated",
        in_run_options="if given",
    )
    checkpoints: str | None = option(
        str,
        None,
        "faults",
        "Folder of the checkpoints; the last two are kept [default: checkpoints/MODE].",
        metavar="FOLDER",
        trait="replicated",
        in_run_options="if given",
    )
    resume: bool = option(
        bool,
        False,
        "faults",
        "Continue from the last checkpoint in that folder.",
        trait="replicated",
        in_run_options="if given",
    )
    out: str | None = option(
        str,
        None,
        "recording",
        "Folder for the run [default: runs/MODE, or runs/SCRIPT's name].",
        metavar="FOLDER",
        in_run_options="never",
    )
    save_parameters: str | None = option(
        str,
        None,
        "recording",
        "Save the parameters after the last step to this .npz file.",
        metavar="FILE",
        in_run_options="never",
    )


OPTIONS = tuple(option for option in vars(TrainerOptions).values() if isinstance(option, Option))
"""All options of the trainers; ``--force`` is a flag of its own."""
