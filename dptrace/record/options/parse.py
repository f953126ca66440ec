"""What a recording was asked for: a trainer's command line read, its schedule, and what does not go together."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dptrace.errors import UsageError
from dptrace.record.options.catalog import OPTIONS, positive_int
from dptrace.record.options.models import MODELS
from dptrace.record.options.modes import MODES
from dptrace.record.options.validation import STATEFUL_COMPRESSIONS, check_compression

__all__ = [
    "SAMPLES",
    "SYNTHETIC_IMAGES",
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
CIFAR10_SAMPLES = 50_000
"""Images in CIFAR-10's training data."""
SYNTHETIC_IMAGES = "made-up images of CIFAR-10's shape"
"""What resnet18 trains on without a folder of the real ones; run.json's word for it."""


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

    def after(self, first: int) -> Schedule:
        """Give the schedule of what is left after *first* steps, of which the last are recorded.

        Raises:
            UsageError: nothing is left.
        """
        left = self.total - first
        if left < 1:
            raise UsageError(
                f"The checkpoint is of step {first}, and the training ends after {self.total}: give more --steps."
            )
        steps = min(self.steps, left)
        warmup = min(self.warmup, left - steps)
        return Schedule(left - steps - warmup, warmup, steps)


class Options(argparse.Namespace):
    """What a trainer was asked for."""

    model: str
    batch_size: int
    bucket_cap_mb: float | None
    compress: str
    topk_ratio: float | None
    powersgd_rank: int | None
    static_graph: bool
    gradient_as_bucket_view: bool
    find_unused_parameters: bool
    ranks_per_node: int | None
    prefetch: str
    reshard_after_forward: str
    dtype: str
    optimizer: str
    lr: float
    weight_decay: float
    amp: str | None
    clip_grad: float | None
    checkpoint_activations: bool
    compile: bool
    data: str | None
    schedule: str
    experts: int
    top_k: int
    tp: int
    pp: int
    micro_batches: int
    virtual_stages: int
    seed: int
    steps: int
    warmup: int
    wait: int | None
    out: str | None
    save_parameters: str | None
    force: bool
    checkpoint_every: int | None = None
    checkpoints: str | None = None
    resume: bool = False
    mode: str
    epochs: int | None
    damaged_checkpoints: tuple[str, ...] = ()
    """Checkpoints that could not be read, with the reason, when the training went on from one before them."""
    first_step: int = 0
    """Where a training that was broken off goes on."""

    @property
    def total_steps(self) -> int:
        """Count the steps of the training, from its very first."""
        return Schedule.of(self.steps, self.warmup, self.wait).total

    @property
    def checkpoint_settings(self) -> dict[str, Any]:
        """Give what must be the same in a training that goes on from a checkpoint."""
        names = ("mode", "model", "batch_size", "optimizer", "lr", "weight_decay", "seed", "dtype", "amp", "clip_grad")
        facts = {name: getattr(self, name) for name in names}
        compression = getattr(self, "compress", "none")
        return facts if compression == "none" else facts | {"compress": compression}

    @property
    def record_arguments(self) -> dict[str, Any]:
        """Give the arguments of ``record.record``."""
        about = {key: value for key, value in vars(self).items() if key not in _NOT_RECORDED}
        if self.model == "resnet18":
            about["data"] = self.data or SYNTHETIC_IMAGES
        chosen = {key: getattr(self, key) for key in ("out", "steps", "warmup", "wait", "force")}
        if self.epochs is None:
            return chosen | {
                "options": about,
                "first_step": self.first_step,
                "damaged_checkpoints": self.damaged_checkpoints,
            }
        samples = CIFAR10_SAMPLES if self.data else SAMPLES
        return chosen | {"options": about | {"mode": self.mode}, "epochs": (self.epochs, samples // self.batch_size)}


_NOT_RECORDED = (
    "out",
    "steps",
    "warmup",
    "wait",
    "force",
    "save_parameters",
    "mode",
    "epochs",
    "first_step",
    "damaged_checkpoints",
)
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
        help_text = option.help_text.replace("%", "%%")
        if option.type is bool:
            parser.add_argument(f"--{option.name}", action="store_true", help=help_text)
            continue
        choices = MODES[mode].models if option.name == "model" else option.choices or None
        parser.add_argument(
            f"--{option.name}", type=option.type, default=option.default, choices=choices, help=help_text
        )
    parser.add_argument("--force", action="store_true", help="Replace the run folder if it is there already.")
    epochs = "Time this many epochs without the profiler, and print one line of results; record nothing."
    parser.add_argument("--epochs", type=positive_int, metavar="N", help=epochs)
    options = parser.parse_args(arguments, namespace=Options(mode=mode))
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
    if options.get("checkpoints") and not (options.get("checkpoint_every") or options.get("resume")):
        raise UsageError("--checkpoints names a folder for --checkpoint-every or --resume: give one of them.")
    compression = options.get("compress") or "none"
    if (options.get("checkpoint_every") or options.get("resume")) and compression in STATEFUL_COMPRESSIONS:
        raise UsageError(
            f"--compress {compression} keeps what it left out for the next step, which no checkpoint holds: leave one "
            "out, or use --compress fp16 or bf16."
        )
    if options["amp"] is not None and options["dtype"] not in (None, "float32"):
        raise UsageError(f"--amp keeps the parameters in float32: leave --dtype {options['dtype']} out.")
    check_compression(options)


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
