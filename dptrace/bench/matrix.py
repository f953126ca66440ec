"""The configurations of a benchmark: one per model, mode and number of GPUs that this machine can run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dptrace.core.units import plural
from dptrace.errors import UsageError
from dptrace.record.options.models import MODELS
from dptrace.record.options.modes import MODES
from dptrace.record.options.parse import check_model
from dptrace.record.options.validation import check_batch

__all__ = ["BenchConfig", "matrix"]


@dataclass(frozen=True, slots=True)
class BenchConfig:
    """One training to time."""

    model: str
    """For a user's script, its name."""
    mode: str
    """For a user's script, ``script``."""
    gpus: int
    options: tuple[tuple[str, str], ...] = ()
    """Further options of the trainer, as names without dashes and values; an empty value is a flag."""

    @property
    def arguments(self) -> list[str]:
        """The options as a trainer's command line."""
        return [f"--{name}={value}" if value else f"--{name}" for name, value in self.options]

    @property
    def name(self) -> str:
        """A name for files, unique to this configuration."""
        parts = [self.model, self.mode, str(self.gpus), *(f"{name}={value}" for name, value in self.options)]
        return re.sub(r"[^\w.=-]", "_", "_".join(parts))

    def __str__(self) -> str:
        more = "".join(f", {name} {value}".rstrip() for name, value in self.options)
        return f"{self.model}, {self.mode}, {plural(self.gpus, 'GPU')}{more}"


def matrix(
    models: Sequence[str], modes: Sequence[str], counts: Sequence[int], most: int, batch_size: int | None = None
) -> tuple[list[BenchConfig], list[str]]:
    """Return the configurations of a benchmark, in the order of its table, and a sentence on each count left out.

    Modes that train on one GPU get one configuration per model, all others one per number of GPUs above 1, since
    ``single`` is the baseline of all. With four GPUs and the defaults, there are 28.

    Args:
        most: number of processes that this machine can run: its GPUs, or the cores of its CPU.
        batch_size: samples of a step; None for each model's default.

    Raises:
        UsageError: a mode can't train a model, or nothing is left to run.
    """
    for mode in modes:
        for model in models:
            check_model(mode, model)
    several = [count for count in counts if count > 1]
    left_out = []
    for count in several:
        if count > most:
            left_out.append(f"{count} GPUs: this machine has {most}.")
            continue
        for model in models:
            check_batch(batch_size or MODELS[model].batch_size, count)
    fit = [count for count in several if count <= most]
    configs = []
    for model in models:
        for mode in modes:
            configs += [BenchConfig(model, mode, count) for count in ([1] if MODES[mode].single_gpu else fit)]
    if not configs:
        raise UsageError("--gpus: nothing to run: " + (" ".join(left_out) or "give numbers above 1."))
    return configs, left_out
