"""The ways to train that dptrace brings: their names, the idea of each, and the file to read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dptrace.errors import UsageError
from dptrace.record.models import MODELS

__all__ = ["FAMILIES", "MODES", "Mode", "complete_mode", "trainer"]

FAMILIES = {
    "first": "Modes to begin with",
    "data": "More data parallelism",
    "sharded": "Sharded",
    "tensor": "Tensor parallelism",
    "pipeline": "Pipelines",
    "experts": "Experts",
    "combined": "Several at once",
}
"""What kinds of modes there are, in the order and with the headings of --help."""


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to train in parallel."""

    idea: str
    family: str = "first"
    """A key of FAMILIES."""
    models: tuple[str, ...] = tuple(MODELS)
    """The models that it can train; the first is its default, unless --model's own default is among them."""
    file: str = ""
    """Name of the trainer's file, where it is not the mode's with underscores."""
    alone: bool = False
    """Whether it runs on one rank only."""


MODES = {
    "single": Mode("one GPU, no communication: the baseline", alone=True),
    "naive": Mode("the whole backward pass, then one blocking all-reduce for each parameter"),
    "interleaved": Mode("an all-reduce starts as soon as a gradient is there, while backward goes on"),
    "ddp": Mode("PyTorch's DistributedDataParallel: gradients in buckets, an all-reduce for each bucket"),
}
"""One entry for each trainer in trainers/, in the order in which to read them."""


def complete_mode(context: object, parameter: object, begun: str) -> list[str]:
    """Give a shell the modes that begin so."""
    return [mode for mode in MODES if mode.startswith(begun)]


def trainer(mode: str) -> Path:
    """Give the file of a mode's trainer.

    Raises:
        UsageError: there is no such mode; the message lists those there are.
    """
    if mode not in MODES:
        width = max(map(len, MODES))
        lines = "".join(f"\n  {name:{width}}  {known.idea}" for name, known in MODES.items())
        raise UsageError(f"There is no mode {mode!r}. The modes are:{lines}")
    name = MODES[mode].file or mode.replace("-", "_")
    return Path(__file__).parents[1] / "trainers" / f"{name}.py"
