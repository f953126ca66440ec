"""The command line of a trainer: its options read and checked, and the schedule of its recording."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dptrace.errors import UsageError
from dptrace.record.options.catalog import OPTIONS, Option, TrainerOptions, batch_sizes, positive_int
from dptrace.record.options.models import MODELS
from dptrace.record.options.modes import MODES, REPLICATED
from dptrace.record.options.validation import (
    STATEFUL_COMPRESSIONS,
    check_compression,
    check_recomputation,
    check_sharding,
)

__all__ = [
    "OVERHEAD_STEPS",
    "SYNTHETIC_IMAGES",
    "Options",
    "Schedule",
    "check_model",
    "check_training",
    "default_model",
    "parse_options",
]

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
            settings |= {name: value for name in layout if (value := vars(self).get(name)) is not None}
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
        kind |= {"type": option.type, "default": option.default}
        if option.type is bool:
            kind = {
                "action": argparse.BooleanOptionalAction if option.default else "store_true",
                "default": option.default,
            }
        # argparse formats its help
        parser.add_argument(f"--{option.name}", help=option.help_text.replace("%", "%%"), **kind)
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


def check_training(options: dict[str, Any]) -> None:
    """Check that options can be combined.

    Args:
        options: by attribute name; None for an option that was not given.

    Raises:
        UsageError: they cannot; the message says which, and why.
    """
    model = options["model"] or "medium"
    check_recomputation(options, model)
    check_sharding(options)
    if options["data"] is not None and model != "resnet18":
        raise UsageError(f"--data: the model {model} trains on synthetic data; only --model resnet18 reads CIFAR-10.")
    samples, batch = options.get("samples"), options.get("batch_size") or MODELS[model].batch_size
    if samples is not None and samples < batch:
        raise UsageError(f"--samples {samples} do not fill a batch of {batch}: give more, or a smaller --batch-size.")
    checkpoints = options.get("checkpoint_every") or options.get("resume")
    if options.get("checkpoints") and not checkpoints:
        raise UsageError("--checkpoints names a folder for --checkpoint-every or --resume: add one of them.")
    compression = options.get("compress") or "none"
    if checkpoints and compression in STATEFUL_COMPRESSIONS:
        raise UsageError(
            f"--compress {compression} carries errors or random numbers over to the next step, and checkpoints do not "
            "hold them: drop one of the two, or use --compress fp16 or bf16."
        )
    if options["amp"] is not None and options["dtype"] not in (None, "float32"):
        raise UsageError(f"--amp keeps the parameters in float32: leave --dtype {options['dtype']} out.")
    check_compression(options)
