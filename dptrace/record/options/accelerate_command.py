"""Read the command line of ``accelerate launch``: plain data parallel training, and nothing that would be ignored."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from dptrace.errors import UsageError

__all__ = ["AccelerateLaunch", "parse_accelerate"]

_ADVICE = (
    "dptrace starts the ranks with torchrun instead, whose variables Accelerator() reads. It honors --num_processes, "
    "--multi_gpu, --cpu, --mixed_precision and -m; set the rest in the script (Accelerator(…)), and record it with "
    "dptrace record --gpus N train.py …"
)


@dataclass(frozen=True, slots=True)
class AccelerateLaunch:
    """What an ``accelerate launch`` command line asks for."""

    script: str
    is_module: bool
    arguments: tuple[str, ...]
    processes: str | None
    environment: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"accelerate launch: {message}. {_ADVICE}")


def parse_accelerate(words: Sequence[str]) -> AccelerateLaunch:
    """Read the words after ``accelerate launch``.

    Raises:
        UsageError: an option would have to be ignored.
    """
    parser = _Parser(prog="accelerate launch", add_help=False, allow_abbrev=False)
    for name in ("num_processes", "mixed_precision"):
        parser.add_argument(f"--{name}", f"--{name.replace('_', '-')}")
    for name in ("multi_gpu", "cpu"):
        parser.add_argument(*dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}")), action="store_true")
    parser.add_argument("-m", "--module", action="store_true")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args(words)
    if given.script.startswith("-"):
        parser.error(f"unrecognized arguments: {given.script}")
    environment = {"ACCELERATE_USE_CPU": "true"} if given.cpu else {}
    if given.mixed_precision is not None:
        environment["ACCELERATE_MIXED_PRECISION"] = given.mixed_precision
    config = _default_config()
    notes = (f"accelerate's own settings in {config} are not read.",) if config.is_file() else ()
    return AccelerateLaunch(given.script, given.module, tuple(given.arguments), given.num_processes, environment, notes)


def _default_config() -> Path:
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface"
    )
    return Path(home) / "accelerate" / "default_config.yaml"
