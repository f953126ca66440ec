"""Every option of the trainers, declared once: its type, default, help and the modes that take it.

The trainers' own command lines (``parse_options``), ``dptrace record`` and run.json all follow this declaration.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from dptrace.errors import UsageError
from dptrace.record.options.modes import MODELS, MODES, REPLICATED, Trait, modes_with
from dptrace.record.options.validation import COMPRESSION_DEFAULTS, check_training


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
    dptrace.commands.record."""
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
_training, _parallel, _faults = (partial(option, group) for group in ("training", "parallel", "faults"))
_recording = partial(option, "recording", in_run_options="never")
_ddp = partial(option, "ddp", trait="ddp")
_flag: dict[str, Any] = {"type": bool, "default": False}
_same: dict[str, Any] = {"same_on_resume": True}
_if_given: dict[str, Any] = {"in_run_options": "if given"}


class TrainerOptions(argparse.Namespace):
    """The options of one training, in the order of --help. To add an option, add an attribute."""

    model: str = option("first", f"{_MODEL_HELP} [default: medium, or the mode's own].", choices=tuple(MODELS), **_same)
    steps: int = option("first", "Steps to record.", type=int, default=10, in_run_options="never")
    batch_size: int = _training(
        "Samples in a step, over all ranks [default: the model's, 1024 for MLPs].", type=int, **_same
    )
    bucket_cap_mb: float | None = _ddp(
        "DDP's bucket size in MiB [default: DDP's own, 25 with a first bucket of 1].", type=positive_number
    )
    compress: str = _ddp(
        "How to compress DDP's gradients: to 16, 8 or 4 bits, by random rounding (qsgd), to the largest values, to "
        "some at random, to those above a threshold, or to low-rank matrices.",
        default="none",
        choices=("none", "fp16", "bf16", "int8", "int4", "qsgd", "topk", "randomk", "threshold", "powersgd"),
        **_same,
    )
    topk_ratio: float | None = _ddp(
        f"Share of the gradient's values that --compress topk sends {_default_of('topk_ratio')}.", type=ratio
    )
    randomk_ratio: float | None = _ddp(
        f"Share of the gradient's values that --compress randomk sends {_default_of('randomk_ratio')}.", type=ratio
    )
    threshold: float | None = _ddp(
        f"Size above which --compress threshold sends a gradient's value {_default_of('threshold')}.",
        type=positive_number,
        metavar="SIZE",
    )
    qsgd_levels: int | None = _ddp(
        "Levels up, and as many down, that --compress qsgd rounds to: 1 takes 2 bits, up to 7 take 4, up to 127 take 8 "
        f"{_default_of('qsgd_levels')}.",
        type=number_where(int, lambda number: 1 <= number <= 127, "from 1 to 127"),
    )
    powersgd_rank: int | None = _ddp(
        f"Rank of the matrices that --compress powersgd sends {_default_of('powersgd_rank')}.", type=positive_int
    )
    static_graph: bool = _ddp("Tell DDP that every step uses the same parameters.", trait="one backward", **_flag)
    gradient_as_bucket_view: bool = _ddp(
        "Store the gradients in DDP's buckets, which saves a copy of all of them.", **_flag
    )
    find_unused_parameters: bool = _ddp("Let DDP search each step for parameters that it does not use.", **_flag)
    broadcast_buffers: bool = _ddp(
        "Copy rank 0's buffers, such as batch norm's averages, to all ranks before forward.", type=bool, default=True
    )
    ranks_per_node: int | None = _parallel(
        "Ranks that share a fast link [default: those of one machine].", type=positive_int, trait="nodes"
    )
    experts: int = _parallel("Experts in each block, over all ranks.", type=positive_int, default=8, trait="experts")
    tp: int = _parallel("Ranks that share each layer.", type=positive_int, default=2, trait="mesh")
    pp: int = _parallel("Stages of the pipeline.", type=positive_int, default=2, trait="stages")
    top_k: int = _parallel("Experts that each token is sent to.", type=positive_int, default=2, trait="experts")
    ep: int = _parallel(
        "Ranks that share out the experts of a block [default: all that have different parts of the batch].",
        type=positive_int,
        trait="expert mesh",
    )
    capacity_factor: float | None = _parallel(
        "Tokens that an expert takes, in even shares; it drops those beyond [default: no limit].",
        type=positive_number,
        trait="experts",
        metavar="F",
    )
    shared_experts: int = _parallel(
        "Experts that each token visits, besides those that are chosen for it.",
        type=non_negative_int,
        default=0,
        trait="experts",
    )
    dtype: str = _training(
        "Number type of parameters and gradients; float64 compares trainings without float32's rounding.",
        default="float32",
        choices=("float32", "float64", "bfloat16", "float16"),
        **_same,
    )
    optimizer: str = _training("Optimizer [default: the model's, sgd for MLPs].", choices=("sgd", "adamw"), **_same)
    lr: float = _training("Learning rate [default: the model's, 0.01 for MLPs].", type=non_negative_number, **_same)
    weight_decay: float = _training(
        "Weight decay [default: the model's, 0 for MLPs].", type=non_negative_number, **_same
    )
    amp: str | None = _training(
        "Run forward in lower precision; fp16 scales the gradients.", choices=("bf16", "fp16"), **_same
    )
    clip_grad: float | None = _training(
        "Clip the gradients to this norm over all parameters.", type=positive_number, **_same
    )
    checkpoint_activations: bool = _training(
        "Recompute each block's activations in backward instead of keeping them (resnet18, balanced, gpt).", **_flag
    )
    checkpoint_activations_every: int | None = _training(
        "Recompute those of every N-th block only, from the first on.", type=positive_int
    )
    compile: bool = _training("Compile each block with torch.compile.", **_flag)
    data: str | None = _training(
        "Folder of CIFAR-10 in its binary form, for resnet18 [default: synthetic images].", metavar="FOLDER"
    )
    samples: int | None = _training(
        "Train on the first N samples of the data only [default: all].", type=positive_int, **_same, **_if_given
    )
    mixed_precision: str | None = _parallel(
        "Gather and compute in lower precision, and reduce gradients in it; shards stay in --dtype.",
        choices=("bf16", "fp16"),
        trait="fully sharded",
        **_same,
    )
    reduce_dtype: str | None = _parallel(
        "Number type in which --mixed-precision reduces gradients [default: the same as it computes in].",
        choices=("bf16", "fp16", "fp32"),
        trait="fully sharded",
        **_same,
    )
    cpu_offload: bool = _parallel(
        "Keep shards, their gradients and the optimizer in the CPU's memory, and update there (GPUs only).",
        trait="fully sharded",
        **_flag,
    )
    prefetch: str = _parallel(
        "When a block's parameters are gathered: when it needs them, torch's way, or one block ahead.",
        default="default",
        choices=("none", "default", "explicit"),
        trait="fully sharded",
    )
    reshard_after_forward: str = _parallel(
        "Whether to free a block's parameters after forward and gather them again for backward.",
        default="yes",
        choices=("yes", "no"),
        trait="fully sharded",
    )
    schedule: str = _parallel(
        "Order of forwards and backwards.",
        default="1f1b",
        choices=("naive", "gpipe", "1f1b", "interleaved", "zero-bubble"),
        trait="schedule",
    )
    micro_batches: int = _parallel(
        "Micro-batches that the batch of a step is split into [default: 4 for each rank].",
        type=int,
        trait="micro-batches",
    )
    virtual_stages: int = _parallel(
        "Stages on each rank, with --schedule interleaved or zero-bubble [default: 2 for interleaved, else 1].",
        type=int,
        trait="schedule",
    )
    seed: int = _training(
        "Seed of the data, of its order and of the initial parameters.", type=seed_number, default=42, **_same
    )
    warmup: int = _recording("Warm-up steps before the recorded steps; at least 2.", type=int, default=3)
    wait: int | None = _recording("Steps before the warm-up [default: 0; with --mode warmup + 15].", type=int)
    checkpoint_every: int | None = _faults(
        "Write a checkpoint every N steps; with --epochs, every N epochs, while the clock stands still.",
        type=positive_int,
        **_if_given,
    )
    checkpoints: str | None = _faults(
        "Folder of the checkpoints; the last two are kept [default: checkpoints/MODE].", metavar="FOLDER", **_if_given
    )
    resume: bool = _faults("Continue from the last checkpoint in that folder.", **_if_given, **_flag)
    out: str | None = _recording("Folder for the run [default: runs/MODE, or runs/SCRIPT's name].", metavar="FOLDER")
    save_parameters: str | None = _recording(
        "Save the parameters after the last step to this .npz file.", metavar="FILE"
    )


OPTIONS = tuple(option for option in vars(TrainerOptions).values() if isinstance(option, Option))
"""All options of the trainers; ``--force`` is a flag of its own."""


# The command line of a trainer: its options read and checked, and the schedule of its recording.


OVERHEAD_STEPS = 15
"""Steps in which the overhead is measured, by default: five windows of three, with and without the profiler."""
SYNTHETIC_IMAGES = "made-up images of CIFAR-10's shape"
"""What resnet18 trains on without CIFAR-10's files, as run.json names it."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which steps are run, timed and recorded, in the terms of ``torch.profiler.schedule``."""

    wait: int
    warmup: int
    steps: int

    @classmethod
    def of(cls, steps: int, warmup: int, wait: int | None) -> Schedule:
        """Check the numbers and set the default of *wait*.

        Raises:
            UsageError: no step is recorded, or the warm-up is too short.
        """
        if steps < 1:
            raise UsageError(f"--steps {steps}: record at least 1 step.")
        if warmup < 2:
            raise UsageError(
                f"--warmup {warmup}: at least 2. DDP reduces all gradients as one bucket in its first step and "
                "rebuilds its buckets after it, so the second step is the first typical one."
            )
        if wait is not None and wait < 0:
            raise UsageError(f"--wait {wait}: must be 0 or more steps.")
        return cls(warmup + OVERHEAD_STEPS if wait is None else wait, warmup, steps)

    @property
    def total(self) -> int:
        """Number of all steps."""
        return self.wait + self.warmup + self.steps

    def after(self, first: int) -> Schedule:
        """Return the schedule of the steps that remain after *first* steps; the last ones are recorded.

        Raises:
            UsageError: no step remains.
        """
        left = self.total - first
        if left < 1:
            raise UsageError(
                f"The checkpoint is of step {first}, and the training ends after {self.total} steps: raise --steps."
            )
        steps = min(self.steps, left)
        warmup = min(self.warmup, left - steps)
        return Schedule(left - steps - warmup, warmup, steps)


class Options(TrainerOptions):
    """The options of one training, and its state when it continues from a checkpoint."""

    mode: str
    force: bool
    epochs: int | None
    inference: tuple[int, ...]
    damaged_checkpoints: tuple[str, ...] = ()
    """Checkpoints that could not be read, with the reason, if the training continued from an older one."""
    first_step: int = 0
    """The step from which the training continues."""
    steps_per_epoch: int = 0
    """Number of whole batches in the data, known once that is read."""
    epoch_results: Sequence[dict[str, Any]] = ()
    """The results of the timed epochs before a checkpoint."""
    write_checkpoint: Callable[[Sequence[dict[str, Any]]], None] | None = None
    """Writes a checkpoint of the training as it is, with the results of its epochs; None if it writes none."""

    @property
    def total_steps(self) -> int:
        """Number of steps of the training, counted from its very first."""
        if self.epochs is not None:
            return self.warmup + self.epochs * self.steps_per_epoch
        return Schedule.of(self.steps, self.warmup, self.wait).total

    @property
    def checkpoint_settings(self) -> dict[str, Any]:
        """What must be the same in a training that continues from a checkpoint."""
        settings = {option.field: getattr(self, option.field) for option in OPTIONS if option.same_on_resume}
        if self.compress == "none":
            del settings["compress"]  # checkpoints of other modes do not have it
        if self.epochs is not None:
            timing = {"warmup": self.warmup, "steps_per_epoch": self.steps_per_epoch}
            settings |= timing | {"data": self.data or "synthetic"}
        if self.mode not in REPLICATED:
            layout = ("tp", "pp", "ep", "virtual_stages", "experts", "top_k", "capacity_factor", "ranks_per_node")
            settings |= {name: vars(self)[name] for name in layout if vars(self).get(name) is not None}
            settings |= {"shared_experts": self.shared_experts} if self.shared_experts else {}
        return {"mode": self.mode} | settings

    @property
    def record_arguments(self) -> dict[str, Any]:
        """The arguments of ``record.record``."""
        names = ("out", "steps", "warmup", "force", "first_step", "damaged_checkpoints")
        wait = Schedule.of(self.steps, self.warmup, self.wait).wait
        return {"options": self.run_options, "wait": wait} | {name: getattr(self, name) for name in names}

    @property
    def run_options(self) -> dict[str, Any]:
        """What run.json lists under ``options``."""
        run_options = {option.field: getattr(self, option.field) for option in OPTIONS if self._is_run_option(option)}
        if self.model == "resnet18":
            run_options["data"] = self.data or SYNTHETIC_IMAGES
        return run_options

    def _is_run_option(self, option: Option) -> bool:
        given = option.in_run_options == "always" or getattr(self, option.field) != option.default
        return option.field in vars(self) and option.in_run_options != "never" and given


def default_model(mode: str) -> str:
    """Return the model that a mode trains by default: of equal blocks where its stages should take equally long."""
    models, traits = MODES[mode].models, MODES[mode].traits
    if "balanced" in models and ("schedule" in traits or "stages" in traits):
        return "balanced"
    return "medium" if "medium" in models else models[0]


def check_model(mode: str, model: str) -> None:
    """Check that a mode can train a model.

    Raises:
        UsageError: it cannot; the message lists the models that it can train.
    """
    models = MODES[mode].models
    if model not in models:
        raise UsageError(f"--model {model}: the mode {mode} trains {', '.join(models)}.")


def parse_options(description: str | None, mode: str, arguments: Sequence[str] | None = None) -> Options:
    """Read a trainer's command line.

    Args:
        description: the trainer's docstring, shown by --help.
        mode: the mode whose options it takes.
        arguments: the command line; by default that of the process.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in OPTIONS:
        if option.modes and mode not in option.modes:
            continue
        choices = MODES[mode].models if option.name == "model" else option.choices
        kind: dict[str, Any] = {"choices": choices} if choices else {"metavar": option.metavar}
        kind["type"] = option.type
        if option.type is bool:
            kind = {"action": argparse.BooleanOptionalAction if option.default else "store_true"}
        # argparse formats its help
        text = option.help_text.replace("%", "%%")
        parser.add_argument(f"--{option.name}", help=text, default=option.default, **kind)
    parser.add_argument("--force", action="store_true", help="Replace the run folder if it exists.")
    epochs = "Time this many epochs without the profiler and print a line of results for each; record nothing."
    parser.add_argument("--epochs", type=positive_int, metavar="N", help=epochs)
    inference = "After the last of --epochs, time forward alone for batches of these sizes, separated by commas."
    parser.add_argument("--inference", type=batch_sizes, default=(), metavar="LIST", help=inference)
    options = Options(mode=mode, **vars(parser.parse_args(arguments)))
    options.model = options.model or default_model(mode)
    for name in ("batch_size", "optimizer", "lr", "weight_decay"):
        if getattr(options, name) is None:
            setattr(options, name, getattr(MODELS[options.model], name))
    check_training(vars(options))
    if options.inference and options.epochs is None:
        raise UsageError("--inference measures after the last timed epoch: add --epochs.")
    return options
