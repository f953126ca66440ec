"""The options of a recording, told once: for the trainers' own command lines and for ``dptrace record``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dptrace.errors import UsageError
from dptrace.record.models import MODELS
from dptrace.record.modes import MODES

__all__ = [
    "OPTIONS",
    "SAMPLES",
    "Option",
    "Options",
    "Schedule",
    "check_batch",
    "check_model",
    "check_training",
    "default_model",
    "parse_options",
]

SAMPLES = 32_768
"""Samples in the synthetic data."""


def number_above_zero(text: str) -> float:
    """Read a number, and refuse with ValueError zero and less, and what no size can be."""
    if not 0 < float(text) < 1e6:
        raise ValueError(f"{text} is not above 0, or beyond all reason")
    return float(text)


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
    def described(self) -> str:
        """Give the help with the default, and the modes where it is not for all."""
        text = f"{', '.join(self.modes)}: {self.help}" if 0 < len(self.modes) < _MANY else self.help
        return text if self.default in (None, False) else f"{text} [default: {self.default}]"


_MANY = 4
"""Modes that are named in an option's help; more would hide what it is for."""

OPTIONS = (
    Option(
        "model",
        str,
        None,
        "first",
        "Model to train: "
        + ", ".join(f"{name} ({model.idea})" for name, model in MODELS.items())
        + " [default: medium, or the mode's own].",
        choices=tuple(MODELS),
    ),
    Option("steps", int, 10, "first", "Steps to record."),
    Option(
        "batch-size", int, None, "training", "Samples in a step, over all ranks [default: the model's, 1024 for MLPs]."
    ),
    Option(
        "bucket-cap-mb",
        number_above_zero,
        None,
        "training",
        "DDP's bucket size in MiB [default: DDP's own, 25 with a first bucket of 1].",
        modes=("ddp",),
    ),
    Option(
        "dtype", str, "float32", "training", "Numbers in which to train.", choices=("float32", "bfloat16", "float16")
    ),
    Option(
        "optimizer", str, None, "training", "Optimizer [default: the model's, sgd for MLPs].", choices=("sgd", "adamw")
    ),
    Option("lr", float, None, "training", "Learning rate [default: the model's, 0.01 for MLPs]."),
    Option("weight-decay", float, None, "training", "Weight decay [default: the model's, 0 for MLPs]."),
    Option(
        "amp",
        str,
        None,
        "training",
        "Forward in lower precision; fp16 with scaled gradients.",
        choices=("bf16", "fp16"),
    ),
    Option("clip-grad", number_above_zero, None, "training", "Clip the gradients to this norm over all parameters."),
    Option(
        "checkpoint-activations",
        bool,
        False,
        "training",
        "Compute each block's activations again in backward, rather than keep them (resnet18, gpt).",
    ),
    Option("compile", bool, False, "training", "Compile each block with torch.compile."),
    Option("data", str, None, "training", "Folder of CIFAR-10's binary files, for resnet18 [default: made-up images]."),
    Option("seed", seed_number, 42, "training", "Seed of the data and of the first parameters."),
    Option("warmup", int, 3, "recording", "Warm-up steps before the timed and before the recorded steps; at least 2."),
    Option(
        "wait",
        int,
        None,
        "recording",
        "Steps before the profiler starts; the last of them are timed without it [default: warmup + steps].",
    ),
    Option("out", str, None, "recording", "Folder for the run [default: runs/MODE, or runs/SCRIPT's name]."),
    Option("save-parameters", str, None, "recording", "Save the parameters after the last step to this .npz file."),
)
"""All options that trainers take, in the order of --help; ``--force`` is a flag beside them."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which steps are run, timed and recorded, in the words of ``torch.profiler.schedule``."""

    wait: int
    warmup: int
    steps: int

    @classmethod
    def of(cls, steps: int, warmup: int, wait: int | None) -> Schedule:
        """Fill in the default of *wait*, and check.

        Raises:
            UsageError: nothing to record, or too short a warm-up.
        """
        if steps < 1:
            raise UsageError(f"--steps {steps}: there must be a step to record.")
        if warmup < 2:
            raise UsageError(
                f"--warmup {warmup}: at least 2. DDP reduces all gradients as one bucket in its first step and "
                "rebuilds its buckets after it, so the second is the first that is like the others."
            )
        if wait is not None and wait < 0:
            raise UsageError(f"--wait {wait}: a number of steps, 0 or more.")
        return cls(warmup + steps if wait is None else wait, warmup, steps)

    @property
    def total(self) -> int:
        """Count all steps."""
        return self.wait + self.warmup + self.steps


class Options(argparse.Namespace):
    """What a trainer was asked for."""

    model: str
    batch_size: int
    bucket_cap_mb: float | None
    dtype: str
    optimizer: str
    lr: float
    weight_decay: float
    amp: str | None
    clip_grad: float | None
    checkpoint_activations: bool
    compile: bool
    data: str | None
    seed: int
    steps: int
    warmup: int
    wait: int | None
    out: str | None
    save_parameters: str | None
    force: bool

    @property
    def recording(self) -> dict[str, Any]:
        """Give the arguments of :func:`dptrace.record.record`."""
        about = {key: value for key, value in vars(self).items() if key not in _NOT_TOLD}
        chosen = {key: getattr(self, key) for key in ("out", "steps", "warmup", "wait", "force")}
        return chosen | {"options": about}


_NOT_TOLD = ("out", "steps", "warmup", "wait", "force", "save_parameters")
"""Options that run.json tells elsewhere or that say nothing of the training."""


def default_model(mode: str) -> str:
    """Give the model that a mode trains unless told otherwise."""
    models = MODES[mode].models
    return "medium" if "medium" in models else models[0]


def check_model(mode: str, model: str) -> None:
    """Refuse a model that a mode can't train.

    Raises:
        UsageError: it can't; the message names those that it can.
    """
    models = MODES[mode].models
    if model not in models:
        raise UsageError(f"--model {model}: the mode {mode} trains {', '.join(models)}.")


def parse_options(description: str | None, mode: str, arguments: Sequence[str] | None = None) -> Options:
    """Read a trainer's command line.

    Args:
        description: the trainer's docstring; shown by --help.
        mode: the mode whose options it takes.
        arguments: the command line; by default the process's own.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option in OPTIONS:
        if option.modes and mode not in option.modes:
            continue
        # A percent sign would begin a format in argparse's help.
        help_text = option.described.replace("%", "%%")
        if option.type is bool:
            parser.add_argument(f"--{option.name}", action="store_true", help=help_text)
            continue
        choices = MODES[mode].models if option.name == "model" else option.choices or None
        parser.add_argument(
            f"--{option.name}", type=option.type, default=option.default, choices=choices, help=help_text
        )
    parser.add_argument("--force", action="store_true", help="Replace the run folder if it is there already.")
    options = parser.parse_args(arguments, namespace=Options())
    options.model = options.model or default_model(mode)
    for name in ("batch_size", "optimizer", "lr", "weight_decay"):
        if getattr(options, name) is None:
            setattr(options, name, getattr(MODELS[options.model], name))
    check_training(vars(options))
    return options


def check_training(options: dict[str, Any]) -> None:
    """Refuse options that do not go together.

    Raises:
        UsageError: the message says which, and why.
    """
    model = options["model"] or "medium"
    if options["checkpoint_activations"] and not MODELS[model].blocks:
        raise UsageError(
            f"--checkpoint-activations: the MLP {model} has no blocks of several layers; it is for resnet18 and gpt."
        )
    if options["data"] is not None and model != "resnet18":
        raise UsageError(f"--data: the model {model} is trained on made-up data; --model resnet18 reads CIFAR-10.")
    if options["amp"] is not None and options["dtype"] not in (None, "float32"):
        raise UsageError(f"--amp keeps the parameters in float32: leave --dtype {options['dtype']} out.")


def check_batch(batch_size: int, ranks: int) -> None:
    """Make sure that every rank gets the same number of samples, so that the mean of means is the mean.

    Raises:
        UsageError: the batch does not divide, or is larger than the data.
    """
    if not 1 <= batch_size <= SAMPLES:
        raise UsageError(f"--batch-size {batch_size}: from 1 to {SAMPLES}, the samples that there are.")
    if batch_size % ranks:
        below, above = batch_size // ranks * ranks, (batch_size // ranks + 1) * ranks
        instead = f"{below} or {above}" if below else str(above)
        raise UsageError(f"--batch-size {batch_size} does not divide over {ranks} ranks; {instead} would.")
