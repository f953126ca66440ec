"""What a benchmark runs: one cell for each model, mode and number of GPUs, and what the machine lacks for the rest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from dptrace.errors import UsageError
from dptrace.record.options.models import MODELS
from dptrace.record.options.modes import MODES
from dptrace.record.options.parse import check_batch, check_model

__all__ = ["BenchConfig", "matrix"]


@dataclass(frozen=True, slots=True)
class BenchConfig:
    """One training to time."""

    model: str
    """Of a user's own script: the script's name."""
    mode: str
    """Of a user's own script: ``script``."""
    gpus: int
    options: tuple[tuple[str, str], ...] = ()
    """Further options of the trainer, as names without dashes and values; an empty value is a flag."""

    @property
    def arguments(self) -> list[str]:
        """Give the options as a trainer's command line."""
        return [f"--{name}={value}" if value else f"--{name}" for name, value in self.options]

    @property
    def name(self) -> str:
        """Give a name that is good for a file, another one for each cell."""
        parts = [self.model, self.mode, str(self.gpus), *(f"{name}={value}" for name, value in self.options)]
        return re.sub(r"[^\w.=-]", "_", "_".join(parts))

    def __str__(self) -> str:
        more = "".join(f", {name} {value}".rstrip() for name, value in self.options)
        return f"{self.model}, {self.mode}, {self.gpus} GPU{'s' * (self.gpus > 1)}{more}"


def matrix(
    models: Sequence[str], modes: Sequence[str], counts: Sequence[int], most: int, batch_size: int | None = None
) -> tuple[list[BenchConfig], list[str]]:
    """Give the cells of a benchmark, in the order of its table, and a sentence for each kind that is left out.

    Modes that train on one GPU get one cell for each model, all others one for each number of GPUs above 1: the
    baseline of all is ``single``. With four GPUs and all that dptrace has by default that makes 28.

    Args:
        most: how many processes this machine can run: its GPUs, or on CPU its cores.
        batch_size: samples of a step; by default each model's own.

    Raises:
        UsageError: a model that a mode can't train, or nothing is left to run.
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
        raise UsageError("--gpus: nothing is left to run: " + (" ".join(left_out) or "name numbers above 1."))
    return configs, left_out
