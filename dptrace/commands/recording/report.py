"""What ``dptrace record`` prints when a run is written, measured or interrupted."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dptrace.core.units import plural, sanitize
from dptrace.record.options.catalog import SYNTHETIC_IMAGES

if TYPE_CHECKING:
    from dptrace.record.launch.torchrun import Launch
    from dptrace.record.processes import Interrupted

__all__ = ["RunReporter", "data_sentence", "interruption_text", "summary"]


class RunReporter:
    """Prints what happens during a launch.

    Args:
        quiet: print nothing.
        show: moves a progress bar: the fraction done, and what is under way.
    """

    def __init__(self, job: Launch, quiet: bool, show: Callable[[float, str], None]) -> None:
        self._job, self._quiet, self._show = job, quiet, show

    def progress(self, done: int, total: int) -> None:
        """Show how many steps are done, of how many."""
        self._show(done / total, f"{done}/{total} steps")

    def state(self, text: str) -> None:
        """Print what the job does, for somebody who waits in front of a terminal."""
        if sys.stderr.isatty():
            self.message(text)

    def message(self, text: str) -> None:
        """Print a sentence."""
        if not self._quiet:
            self.error(text)

    def error(self, text: str) -> None:
        """Print a sentence, even with --quiet."""
        with suppress(OSError):  # the terminal is gone, or standard error is a file on a full disk
            click.echo(text, err=True)

    def recorded(self, info: dict[str, Any], goes_on: bool) -> None:
        """Print what was written, what to note about it, and what to do next."""
        from dptrace.viewers.terminal.run_facts import memory_sentence

        for note in info["notes"]:
            self.message(f"! {sanitize(note)}")
        folder = shlex.quote(info["folder"])
        self.message(summary(info))
        for sentence in filter(None, (data_sentence(info), memory_sentence(info))):
            self.message(sentence)
        # The second run of a job is NAME-2.
        if not re.fullmatch(rf"{re.escape(self._job.out.name)}(-\d+)?", Path(info["folder"]).name):
            self.message(f"{self._job.out} was written by another process in the meantime; the run is in {folder}.")
        if goes_on and not self._job.stop:
            self.message("Training continues; Ctrl-C ends it and keeps the run.")
        self.message(f"Next: dptrace analyze {folder}\n      dptrace view {folder}")

    def measured(self, info: dict[str, Any]) -> None:
        """Print the profiler's overhead."""
        from dptrace.viewers.terminal.run_facts import profiler_sentence

        if sentence := profiler_sentence(info):
            self.message(sentence)


def interruption_text(stopped: Interrupted, checkpoints: str) -> str:
    """Return what an interrupted launch keeps.

    Args:
        checkpoints: a sentence about the training's checkpoints; empty without any.
    """
    lines = ["Interrupted: all ranks are stopped."]
    if stopped.runs:
        kept = shlex.join(stopped.runs)
        lines += [f"Recorded, and kept: {kept}.", f"Next: dptrace analyze {shlex.quote(stopped.runs[0])}"]
    if stopped.kept_failed is not None:
        failed = shlex.quote(str(stopped.kept_failed))
        ranks = ", ".join(str(rank) for rank in stopped.kept_ranks)
        lines += [f"Of these ranks only, traces were written: {ranks}. They are in {failed}."]
        lines += [f"Next: dptrace analyze {failed}"]
    if not stopped.runs and stopped.kept_failed is None:
        why = stopped.lost or "no step was recorded yet, and nothing is kept"
        lines[0] = f"Interrupted: all ranks are stopped; {why}."
    return "\n".join([*lines, *filter(None, [checkpoints])])


def data_sentence(info: dict[str, Any]) -> str:
    """Return what resnet18 trained on; empty for other models, which train on one kind of data only."""
    if info["mode"] is None or info["model"] != "resnet18":
        return ""
    data = info["options"]["data"]
    return f"It trained on {data}." if data == SYNTHETIC_IMAGES else f"It trained on CIFAR-10 from {data}."


def summary(info: dict[str, Any]) -> str:
    """Return what was written, and the profiler's overhead."""
    from dptrace.viewers.terminal.run_facts import profiler_sentence

    ranks = info["ranks"]
    steps = plural(max(rank["recorded_steps"] for rank in ranks), "step")
    return f"Wrote {info['folder']}: {steps} of {plural(len(ranks), 'rank')}. {profiler_sentence(info)}".rstrip()
