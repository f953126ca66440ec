"""The folder of a benchmark: its plan, and the result of each run as soon as it ends."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dptrace.core.files import atomic_write, make_folder, note_output, unreadable
from dptrace.core.units import plural
from dptrace.errors import DptraceError, UsageError
from dptrace.record.options.catalog import check_model
from dptrace.record.options.modes import MODELS, MODES
from dptrace.record.options.validation import check_batch
from dptrace.record.run_folder import delete_checkpoint

PLAN = "bench.json"
"""Holds the plan, and the table once all runs have ended."""
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Store:
    """The folder; its files are written atomically."""

    folder: Path

    def begin(self, plan: dict[str, Any], resume: bool, force: bool) -> None:
        """Prepare the folder for a plan.

        Args:
            resume: keep the existing results; the plan must be the same.
            force: delete the existing results.

        Raises:
            UsageError: there are results and neither option is given, their plan is another one, or the folder holds
                a file that the command reads.
        """
        note_output(self.folder)
        path = self.folder / PLAN
        if path.exists():
            there = self.plan()
            if resume:
                self._check_same_plan(there, plan)
                return
            if not force:
                raise UsageError(
                    f"{self.folder}: already contains a benchmark. Use --resume to continue it, --force to overwrite "
                    "it, or -o to choose another folder."
                )
            for result in self.folder.glob("results/*.json"):
                result.unlink()
            for checkpoint in self.folder.glob("checkpoints/*/step-*"):
                delete_checkpoint(checkpoint)
        elif resume:
            raise UsageError(f"{self.folder}: no benchmark to resume; leave --resume out.")
        elif self.folder.exists() and not self.folder.is_dir():
            raise UsageError(f"{self.folder}: exists and is not a folder; choose another one with -o.")
        elif self.folder.exists() and any(self.folder.iterdir()):
            raise UsageError(f"{self.folder}: contains other files; choose another folder with -o.")
        make_folder(self.folder / "results")
        write_json(path, {"schema": SCHEMA, "plan": plan})

    def plan(self) -> dict[str, Any]:
        """Read the plan.

        Raises:
            DptraceError: the file can't be read.
        """
        content = read_json(self.folder / PLAN)
        plan = content.get("plan")
        if not isinstance(plan, dict):
            raise DptraceError(f"{self.folder / PLAN}: not a file of dptrace bench: it has no plan.")
        return plan

    def _check_same_plan(self, there: dict[str, Any], plan: dict[str, Any]) -> None:
        asked = msgspec.json.decode(msgspec.json.encode(plan))
        for key in sorted(asked.keys() | there.keys()):
            if there.get(key) != asked.get(key):
                raise UsageError(
                    f"{self.folder}: --resume needs the same {key.replace('_', ' ')}: {there.get(key)} then, "
                    f"{asked.get(key)} now. Repeat the same command, or choose another folder with -o."
                )

    def path(self, name: str) -> Path:
        """Return the path of one run's result."""
        return self.folder / "results" / f"{name}.json"

    def result(self, name: str) -> dict[str, Any] | None:
        """Read one run's result; None where it has not ended."""
        path = self.path(name)
        return read_json(path) if path.exists() else None

    def result_if_readable(self, name: str) -> dict[str, Any] | None:
        """Read one run's result; None where it has not ended, or its file is damaged: then the run is repeated."""
        try:
            return self.result(name)
        except DptraceError:
            return None

    def save(self, name: str, result: dict[str, Any]) -> None:
        """Write one run's result."""
        write_json(self.path(name), result)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        DptraceError: the file can't be read, or is not a JSON object.
    """
    try:
        content = msgspec.json.decode(path.read_bytes())
    except FileNotFoundError:
        raise DptraceError(f"{path}: no such file.") from None
    except OSError as error:
        raise DptraceError(unreadable(path, error)) from None
    except msgspec.DecodeError as error:
        raise DptraceError(f"{path}: not valid JSON: {error}.") from None
    if not isinstance(content, dict):
        raise DptraceError(f"{path}: not a JSON object.")
    return content


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically."""
    with atomic_write(path) as temporary:
        temporary.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=1) + b"\n")


# The configurations of a benchmark: one per model, mode and number of GPUs that this machine can run.


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
