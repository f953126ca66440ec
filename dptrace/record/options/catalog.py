"""Every option of the trainers, declared once: its type, default, help and the modes that take it.

The trainers' own command lines (``parse.parse_options``), ``dptrace record`` and run.json all follow this declaration.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from dptrace.record.options.models import MODELS
from dptrace.record.options.modes import Trait, modes_with
from dptrace.record.options.validation import COMPRESSION_DEFAULTS

__all__ = ["OPTIONS", "Option", "TrainerOptions", "batch_sizes", "positive_int"]


def number_where(kind: Callable[[str], Any], holds: Callable[[Any], bool], description: str) -> Callable[[str], Any]:
    """Return a function that reads a number; it raises ValueError where *holds* is false."""

    def read(text: str) -> Any:
        try:
            number = kind(text)
        except ValueError:
            raise ValueError(f"{text} is not a {'whole ' * (kind is int)}number {description}") from None
        if not holds(number):
            raise ValueError(f"{text} is not {description}")
        return number

    read.__name__ = f"number ({description})"  # argparse shows it
    return read


positive_number = number_where(float, lambda number: 0 < number < 1e6, "above 0 and below 1,000,000")
non_negative_number = number_where(float, lambda number: 0 <= number < 1e6, "0 or above and below 1,000,000")
positive_int = number_where(int, lambda number: 1 <= number < 1_000_000, "from 1 to 999,999")
non_negative_int = number_where(int, lambda number: 0 <= number < 1_000_000, "from 0 to 999,999")
seed_number = number_where(int, lambda number: 0 <= number < 1 << 63, "from 0 to 2^63 - 1")
ratio = number_where(float, lambda number: 0 < number <= 1, "above 0 and at most 1")


def batch_sizes(text: str) -> tuple[int, ...]:
    """Read numbers of samples, separated by commas; each once, in the order given.

    Raises:
        ValueError: one is not from 1 to 4,096.
    """
    try:
        sizes = tuple(dict.fromkeys(int(part) for part in text.split(",")))
    except ValueError:
        raise ValueError(f"{text} is not whole numbers with commas") from None
    if not all(1 <= size <= 4096 for size in sizes):
        raise ValueError(f"{text} has a number that is not from 1 to 4,096")
    return sizes


@dataclass(eq=False)
class Option:
    """One option of the trainers: how it is read, what it means, and which modes take it.

    As a class attribute, it holds the default of every object that does not set the attribute.
    """

    group: str
    """The heading under which --help-trainers lists it: a key of ``_TRAINER_HEADINGS`` in
    dptrace.commands.recording.help."""
    help: str
    type: Callable[[str], Any] = str
    """How to read its text; ``bool`` for a flag, which is ``--no-…`` too if its default is true. A ValueError says why
    a text is refused."""
    default: int | float | str | None = None
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
        if self.default is True:
            return f"{text} [default: yes]"
        return text if self.default in (None, False) else f"{text} [default: {self.default}]"


_MANY = 4
"""From this many modes on, an option's help does not list them: the list would hide the text."""
_MODEL_HELP = "Model to train: " + ", ".join(f"{name} ({model.description})" for name, model in MODELS.items())


def _default_of(field: str) -> str:
    """Return the default of a compression's option, for its help."""
    return f"[default: {COMPRESSION_DEFAULTS[field][1]:g}]"


option: Callable[..., Any] = Option
"""The same for type checkers: an attribute has the type of its annotation."""
flag: Callable[..., Any] = partial(Option, type=bool, default=False)


class TrainerOptions(argparse.Namespace):
    """The options of one training, in the order of --help. To add an option, add an attribute."""

    model: str = option(
        "first", f"{_MODEL_HELP} [default: medium, or the mode's own].", choices=tuple(MODELS), same_on_resume=True
    )
    steps: int = option("first", "Steps to record.", type=int, default=10, in_run_options="never")
    batch_size: int = option(
        "training",
        "Samples in a step, over all ranks [default: the model's, 1024 for MLPs].",
        type=int,
        same_on_resume=True,
    )
    bucket_cap_mb: float | None = option(
        "ddp",
        "DDP's bucket size in MiB [default: DDP's own, 25 with a first bucket of 1].",
        type=positive_number,
        trait="ddp",
    )
    compress: str = option(
        "ddp",
        "How to compress DDP's gradients: to 16, 8 or 4 bits, by random rounding (qsgd), to the largest values, to "
        "some at random, to those above a threshold, or to low-rank matrices.",
        default="none",
        choices=("none", "fp16", "bf16", "int8", "int4", "qsgd", "topk", "randomk", "threshold", "powersgd"),
        trait="ddp",
        same_on_resume=True,
    )
    topk_ratio: float | None = option(
        "ddp",
        f"Share of the gradient's values that --compress topk sends {_default_of('topk_ratio')}.",
        type=ratio,
        trait="ddp",
    )
    randomk_ratio: float | None = option(
        "ddp",
        f"Share of the gradient's values that --compress randomk sends {_default_of('randomk_ratio')}.",
        type=ratio,
        trait="ddp",
    )
    threshold: float | None = option(
        "ddp",
        f"Size above which --compress threshold sends a gradient's value {_default_of('threshold')}.",
        type=positive_number,
        trait="ddp",
        metavar="SIZE",
    )
    qsgd_levels: int | None = option(
        "ddp",
        "Levels up, and as many down, that --compress qsgd rounds to: 1 takes 2 bits, up to 7 take 4, up to 127 take 8 "
        f"{_default_of('qsgd_levels')}.",
        type=number_where(int, lambda number: 1 <= number <= 127, "from 1 to 127"),
        trait="ddp",
    )
    powersgd_rank: int | None = option(
        "ddp",
        f"Rank of the matrices that --compress powersgd sends {_default_of('powersgd_rank')}.",
        type=positive_int,
        trait="ddp",
    )
    static_graph: bool = flag("ddp", "Tell DDP that every step uses the same parameters.", trait="one backward")
    gradient_as_bucket_view: bool = flag(
        "ddp", "Store the gradients in DDP's buckets, which saves a copy of all of them.", trait="ddp"
    )
    find_unused_parameters: bool = flag(
        "ddp", "Let DDP search each step for parameters that it does not use.", trait="ddp"
    )
    broadcast_buffers: bool = flag(
        "ddp",
        "Copy rank 0's buffers, such as batch norm's averages, to all ranks before forward.",
        default=True,
        trait="ddp",
    )
    ranks_per_node: int | None = option(
        "parallel", "Ranks that share a fast link [default: those of one machine].", type=positive_int, trait="nodes"
    )
    experts: int = option(
        "parallel", "Experts in each block, over all ranks.", type=positive_int, default=8, trait="experts"
    )
    tp: int = option("parallel", "Ranks that share each layer.", type=positive_int, default=2, trait="mesh")
    pp: int = option("parallel", "Stages of the pipeline.", type=positive_int, default=2, trait="stages")
    top_k: int = option(
        "parallel", "Experts that each token is sent to.", type=positive_int, default=2, trait="experts"
    )
    ep: int = option(
        "parallel",
        "Ranks that share out the experts of a block [default: all that have different parts of the batch].",
        type=positive_int,
        trait="expert mesh",
    )
    capacity_factor: float | None = option(
        "parallel",
        "Tokens that an expert takes, in even shares; it drops those beyond [default: no limit].",
        type=positive_number,
        trait="experts",
        metavar="F",
    )
    shared_experts: int = option(
        "parallel",
        "Experts that each token visits, besides those that are chosen for it.",
        type=non_negative_int,
        default=0,
        trait="experts",
    )
    dtype: str = option(
        "training",
        "Number type of parameters and gradients; float64 compares trainings without float32's rounding.",
        default="float32",
        choices=("float32", "float64", "bfloat16", "float16"),
        same_on_resume=True,
    )
    optimizer: str = option(
        "training", "Optimizer [default: the model's, sgd for MLPs].", choices=("sgd", "adamw"), same_on_resume=True
    )
    lr: float = option(
        "training",
        "Learning rate [default: the model's, 0.01 for MLPs].",
        type=non_negative_number,
        same_on_resume=True,
    )
    weight_decay: float = option(
        "training", "Weight decay [default: the model's, 0 for MLPs].", type=non_negative_number, same_on_resume=True
    )
    amp: str | None = option(
        "training",
        "Run forward in lower precision; fp16 scales the gradients.",
        choices=("bf16", "fp16"),
        same_on_resume=True,
    )
    clip_grad: float | None = option(
        "training", "Clip the gradients to this norm over all parameters.", type=positive_number, same_on_resume=True
    )
    checkpoint_activations: bool = flag(
        "training", "Recompute each block's activations in backward instead of keeping them (resnet18, balanced, gpt)."
    )
    checkpoint_activations_every: int | None = option(
        "training", "Recompute those of every N-th block only, from the first on.", type=positive_int
    )
    compile: bool = flag("training", "Compile each block with torch.compile.")
    data: str | None = option(
        "training",
        "Folder of CIFAR-10 in its binary form, for resnet18 [default: synthetic images].",
        metavar="FOLDER",
    )
    samples: int | None = option(
        "training",
        "Train on the first N samples of the data only [default: all].",
        type=positive_int,
        same_on_resume=True,
        in_run_options="if given",
    )
    mixed_precision: str | None = option(
        "parallel",
        "Gather and compute in lower precision, and reduce gradients in it; shards stay in --dtype.",
        choices=("bf16", "fp16"),
        trait="fully sharded",
        same_on_resume=True,
    )
    reduce_dtype: str | None = option(
        "parallel",
        "Number type in which --mixed-precision reduces gradients [default: the same as it computes in].",
        choices=("bf16", "fp16", "fp32"),
        trait="fully sharded",
        same_on_resume=True,
    )
    cpu_offload: bool = flag(
        "parallel",
        "Keep shards, their gradients and the optimizer in the CPU's memory, and update there (GPUs only).",
        trait="fully sharded",
    )
    prefetch: str = option(
        "parallel",
        "When a block's parameters are gathered: when it needs them, torch's way, or one block ahead.",
        default="default",
        choices=("none", "default", "explicit"),
        trait="fully sharded",
    )
    reshard_after_forward: str = option(
        "parallel",
        "Whether to free a block's parameters after forward and gather them again for backward.",
        default="yes",
        choices=("yes", "no"),
        trait="fully sharded",
    )
    schedule: str = option(
        "parallel",
        "Order of forwards and backwards.",
        default="1f1b",
        choices=("naive", "gpipe", "1f1b", "interleaved", "zero-bubble"),
        trait="schedule",
    )
    micro_batches: int = option(
        "parallel",
        "Micro-batches that the batch of a step is split into [default: 4 for each rank].",
        type=int,
        trait="micro-batches",
    )
    virtual_stages: int = option(
        "parallel",
        "Stages on each rank, with --schedule interleaved or zero-bubble [default: 2 for interleaved, else 1].",
        type=int,
        trait="schedule",
    )
    seed: int = option(
        "training",
        "Seed of the data, of its order and of the initial parameters.",
        type=seed_number,
        default=42,
        same_on_resume=True,
    )
    warmup: int = option(
        "recording",
        "Warm-up steps before the recorded steps; at least 2.",
        type=int,
        default=3,
        in_run_options="never",
    )
    wait: int | None = option(
        "recording",
        "Steps before the warm-up [default: 0; with --mode warmup + 15].",
        type=int,
        in_run_options="never",
    )
    checkpoint_every: int | None = option(
        "faults",
        "Write a checkpoint every N steps; with --epochs, every N epochs, while the clock stands still.",
        type=positive_int,
        in_run_options="if given",
    )
    checkpoints: str | None = option(
        "faults",
        "Folder of the checkpoints; the last two are kept [default: checkpoints/MODE].",
        metavar="FOLDER",
        in_run_options="if given",
    )
    resume: bool = flag("faults", "Continue from the last checkpoint in that folder.", in_run_options="if given")
    out: str | None = option(
        "recording",
        "Folder for the run [default: runs/MODE, or runs/SCRIPT's name].",
        metavar="FOLDER",
        in_run_options="never",
    )
    save_parameters: str | None = option(
        "recording",
        "Save the parameters after the last step to this .npz file.",
        metavar="FILE",
        in_run_options="never",
    )


OPTIONS = tuple(option for option in vars(TrainerOptions).values() if isinstance(option, Option))
"""All options of the trainers; ``--force`` is a flag of its own."""
