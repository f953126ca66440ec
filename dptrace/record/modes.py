"""The ways to train that dptrace brings: their names, the idea of each, and the file to read."""

from __future__ import annotations

from pathlib import Path

from dptrace.errors import UsageError

__all__ = ["MODES", "complete_mode", "trainer"]

MODES = {
    "single": "one GPU, no communication: the baseline",
    "naive": "the whole backward pass, then one blocking all-reduce for each parameter",
    "interleaved": "an all-reduce starts as soon as a gradient is there, while backward goes on",
    "ddp": "PyTorch's DistributedDataParallel: gradients in buckets, an all-reduce for each bucket",
}
"""One line for each trainer in trainers/, in the order in which to read them."""


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
        lines = "".join(f"\n  {name:{width}}  {idea}" for name, idea in MODES.items())
        raise UsageError(f"There is no mode {mode!r}. The modes are:{lines}")
    return Path(__file__).parents[1] / "trainers" / f"{mode}.py"
