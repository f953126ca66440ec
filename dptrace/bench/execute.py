"""Run one benchmark configuration: a torchrun timed without the profiler, then one with it for the split."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import msgspec

from dptrace.bench.recorded import RecordedFigures, recorded_figures
from dptrace.bench.store import BenchConfig, Store
from dptrace.errors import DptraceError, RecordingError
from dptrace.record.launch.launcher import launch
from dptrace.record.launch.monitor import Reporter
from dptrace.record.launch.torchrun import Launch, stop_agent, thread_environment
from dptrace.record.messages import EPOCH, RESULTS
from dptrace.record.options.modes import trainer
from dptrace.record.options.validation import STATEFUL_COMPRESSIONS
from dptrace.record.processes import catch_signals
from dptrace.record.run_folder import checkpoint_steps
from dptrace.trainers.parts.epoch_results import QUALITY

# The lines that a training prints while it runs: one for each epoch, as it ends.


_PIECE = 1 << 16
"""Bytes of a log that are read at a time."""


class EpochLines:
    """The lines of epochs in a file that another process writes.

    Args:
        tell: called with the figures of each epoch, as :func:`epoch_line` of the trainers returns them.
    """

    def __init__(self, file: TextIO | BinaryIO, tell: Callable[[dict[str, Any]], None]) -> None:
        self._file, self._tell, self._position, self._rest = file, tell, 0, b""

    def read(self) -> None:
        """Report what has been written since the last call."""
        # Reading at a position leaves that of the file, which the writer shares, as it is.
        while piece := os.pread(self._file.fileno(), _PIECE, self._position):
            self._position += len(piece)
            *lines, self._rest = (self._rest + piece).split(b"\n")
            for line in lines:
                self._tell_line(line.decode("utf-8", "replace"))

    def _tell_line(self, line: str) -> None:
        if not line.startswith(EPOCH):
            return
        try:
            epoch = json.loads(line.removeprefix(EPOCH))
        except ValueError:
            return
        if isinstance(epoch, dict):
            self._tell(epoch)


_POLL_S = 0.05
"""How often a recording is asked whether it has ended."""
_LAST_LINES = 6
"""Of a log, which say why a recording failed where no line is an error."""
_TORCHRUN = ("torch.distributed.elastic", "torch/distributed/elastic", "torch/distributed/run.py")


class BenchRunError(DptraceError):
    """A run failed; the message is the reason, as the table shows it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of all runs of a benchmark."""

    epochs: int = 5
    warmup: int = 3
    batch_size: int | None = None
    seed: int = 42
    """Of the parameters, the data and its order, for dptrace's trainers."""
    steps: int = 5
    """Steps of the profiled run."""
    script: str | None = None
    """A training script of the user, in place of dptrace's trainers."""
    arguments: tuple[str, ...] = ()
    """Arguments of the script; without one, further arguments of dptrace's trainers."""
    timeout_s: float | None = None
    checkpoints: Path | None = None
    """Folder for the final parameters of dptrace's trainers, and for a checkpoint of each epoch from which a run that
    was stopped continues; both are written outside of the timed part."""
    inference: str | None = None
    """Batch sizes, separated by commas, for which the latency of the trained model is measured."""
    show_epoch: Callable[[BenchConfig, dict[str, Any]], None] | None = None
    """Called with the figures of each epoch of dptrace's trainers as it ends."""
    verb: str = "bench"
    """The command after ``dptrace``, for run.json."""


def run_timed(config: BenchConfig, settings: Settings) -> dict[str, Any]:
    """Time one run and return the results that it prints, with ``total_s``, the seconds of the whole run.

    Raises:
        BenchRunError: the run failed, printed no results, or took too long.
        Interrupted: a signal arrived; all processes of the run are stopped.
    """
    arguments = list(settings.arguments)
    if settings.script is None:
        arguments = _trainer_arguments(config, settings)
        arguments += [f"--epochs={settings.epochs}", f"--warmup={settings.warmup}"]
        arguments += [] if settings.inference is None else [f"--inference={settings.inference}"]
        arguments += _checkpoint_arguments(config, settings.checkpoints)
    script = settings.script or str(trainer(config.mode))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    begun = time.monotonic()
    tell = None if settings.show_epoch is None else partial(settings.show_epoch, config)
    command += [f"--nproc-per-node={config.gpus}", script, *arguments]
    output = _run(command, config.gpus, settings.timeout_s, tell)
    return {**parse_results(output), "total_s": time.monotonic() - begun}


def _checkpoint_arguments(config: BenchConfig, folder: Path | None) -> list[str]:
    """Return what makes a trainer keep its parameters and checkpoints, and continue from the last one."""
    if folder is None:
        return []
    mine = folder.resolve() / config.name
    arguments = [f"--save-parameters={mine}.npz"]
    if dict(config.options).get("compress") in STATEFUL_COMPRESSIONS:
        return arguments  # a checkpoint would lack what each rank has left out of its messages
    arguments += ["--checkpoint-every=1", f"--checkpoints={mine}"]
    return arguments + (["--resume"] if checkpoint_steps(mine) else [])


def _trainer_arguments(config: BenchConfig, settings: Settings) -> list[str]:
    batch = [] if settings.batch_size is None else [f"--batch-size={settings.batch_size}"]
    common = [f"--model={config.model}", f"--seed={settings.seed}"]
    return [*common, *batch, *config.arguments, *settings.arguments]


def _run(
    command: Sequence[str],
    processes: int,
    timeout_s: float | None,
    tell: Callable[[dict[str, Any]], None] | None = None,
) -> str:
    """Run torchrun and return its standard output; *tell* gets the epochs in it while it runs."""
    with tempfile.TemporaryFile("w+", errors="replace") as out, tempfile.TemporaryFile("w+", errors="replace") as err:
        until = time.monotonic() + (timeout_s or float("inf"))
        epochs = EpochLines(out, tell or (lambda epoch: None))
        with catch_signals() as signals:
            # In a separate session, so that Ctrl-C in the terminal reaches only this process, which stops the ranks.
            agent = subprocess.Popen(
                command, stdout=out, stderr=err, env=thread_environment(processes), start_new_session=True
            )
            try:
                while agent.poll() is None and time.monotonic() < until:
                    with suppress(subprocess.TimeoutExpired):
                        agent.wait(_POLL_S)
                    epochs.read()
                    signals.check()
                late = agent.poll() is None
            finally:
                stop_agent(agent)
        epochs.read()
        out.seek(0)
        err.seek(0)
        text, trouble = out.read(), err.read()
    if late:
        raise BenchRunError(f"took longer than {timeout_s:g} s and was stopped")
    if agent.returncode:
        raise BenchRunError(_reason(trouble) or f"ended with exit code {agent.returncode}")
    return text


def _reason(trouble: str) -> str:
    """Return the error of the rank that died, not torchrun's report of it."""
    lines = [line.strip() for line in trouble.splitlines() if line.strip()]
    # torchrun's report comes last, as a traceback and a box; a rank's own lines begin with [rank0]:.
    report = next((i for i, line in enumerate(lines) if any(sign in line for sign in _TORCHRUN)), None)
    lines = lines[:report] or lines
    error_lines = [line for line in lines if line.startswith("Error: ")]
    if error_lines:
        return error_lines[0].removeprefix("Error: ")
    errors = list(filter(_is_error, (re.sub(r"^\[rank\d+\]: ?", "", line) for line in lines)))
    return errors[0][:500] if errors else " ".join(lines[-_LAST_LINES:])[:500]


def _is_error(line: str) -> bool:
    name = line.split(":", 1)[0]
    return name.replace(".", "").replace("_", "").isalnum() and name.endswith(("Error", "Exception"))


def parse_results(output: str) -> dict[str, Any]:
    """Find the line of results that a run prints.

    Raises:
        BenchRunError: there is no such line, or it is not a JSON object with the seconds of an epoch.
    """
    line = next((line for line in reversed(output.splitlines()) if line.startswith(RESULTS)), None)
    if line is None:
        raise BenchRunError(f"printed no line that begins with {RESULTS}")
    try:
        results = json.loads(line.removeprefix(RESULTS))
    except ValueError as error:
        raise BenchRunError(f"printed results that are not valid JSON: {error}") from None
    if not isinstance(results, dict):
        raise BenchRunError("printed results that are not a JSON object")
    seconds = results.get("epoch_s", results.get("avg_epoch_s", results.get("avg_epoch_time")))
    results["epoch_s"] = seconds if isinstance(seconds, list) else [seconds]
    if not results["epoch_s"] or not all(_is_number(value) and value > 0 for value in results["epoch_s"]):
        raise BenchRunError('printed results without epoch times in seconds: add "epoch_s" or "avg_epoch_s"')
    for name in ("parameters", "samples_per_s", "steps_per_epoch", "comm_s"):
        if results.get(name) is not None and not (_is_number(results[name]) and results[name] >= 0):
            raise BenchRunError(f'printed results whose "{name}" is not a number')
    for name in ("losses", "local_losses", *QUALITY):
        values = results.get(name)
        listed = values if isinstance(values, list) else [values]
        if not all(value is None or _is_number(value) for value in listed):
            raise BenchRunError(f'printed results whose "{name}" contains a value that is not a number')
        if name not in QUALITY:
            results[name] = [] if values is None else listed
    return results


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def run_profiled(config: BenchConfig, settings: Settings, out: Path) -> RecordedFigures:
    """Record the configuration once and return its figures.

    Raises:
        BenchRunError: recording failed, or the recorded run cannot be read.
        Interrupted: a signal arrived.
    """
    from dptrace.load.open import open_run

    arguments = settings.arguments
    if settings.script is None:
        arguments = (*_trainer_arguments(config, settings), f"--steps={settings.steps}")
    job = Launch(
        out=out,
        force=True,
        script=Path(settings.script or trainer(config.mode)),
        arguments=arguments,
        processes=config.gpus,
        mode=config.mode if settings.script is None else None,
        schedule={"steps": settings.steps, "warmup": settings.warmup, "wait": 0},
        show_output=False,
        command=["dptrace", settings.verb],
    )
    try:
        runs = launch(job, Reporter())  # the command shows the progress of the whole matrix
        if not runs:
            raise RecordingError("an error of the recorder, such as a full disk")
        return recorded_figures(open_run([str(runs[0]["folder"])]))
    except DptraceError as error:
        raise BenchRunError(f"recording failed: {error}") from None


# Run a benchmark's configurations one after the other; each result is written before the next run starts.


@dataclass(frozen=True, slots=True)
class Job:
    """One training: a repetition of a configuration without the profiler, or its one run with it."""

    config: BenchConfig
    repetition: int
    """0 or more; -1 for the run with the profiler."""

    @property
    def name(self) -> str:
        """The name of its result."""
        return f"{self.config.name}.{'profiled' if self.repetition < 0 else self.repetition}"

    def __str__(self) -> str:
        what = "profiled" if self.repetition < 0 else f"run {self.repetition + 1}"
        return f"{self.config}, {what}"


def jobs(configs: Sequence[BenchConfig], repeat: int, profile: bool = True, profile_first: bool = False) -> list[Job]:
    """Return the trainings in the order in which they run.

    All configurations are timed once before any is timed again, so that a machine that becomes slower affects all of
    them alike. The profiled runs come last, since the table is useful without them, or first.

    Args:
        profile: whether to run each configuration once with the profiler.
        profile_first: whether to do so right before it is timed, so that its split is known while its epochs end.
    """
    if profile_first:
        both = [Job(config, repetition) for config in configs for repetition in (-1, 0)]
        return both + [Job(config, repetition) for repetition in range(1, repeat) for config in configs]
    timed_ones = [Job(config, repetition) for repetition in range(repeat) for config in configs]
    return timed_ones + [Job(config, -1) for config in configs if profile]


def run_all(
    work: Sequence[Job], settings: Settings, store: Store, show: Callable[[Job, bool], None] = lambda job, done: None
) -> None:
    """Run the jobs without a result; failed runs are repeated.

    Args:
        show: called with False before a job runs, and with True when it has a result.

    Raises:
        Interrupted: a signal arrived; the results so far are on disk.
    """
    timed: set[BenchConfig] = set()
    for job in work:
        before = store.result_if_readable(job.name)
        if before is None or "failed" in before:
            show(job, False)
            store.save(job.name, _run_job(job, settings, store, job.config in timed))
        timed.add(job.config)
        show(job, True)


def _run_job(job: Job, settings: Settings, store: Store, timed_before: bool) -> dict[str, Any]:
    try:
        if job.repetition >= 0:
            # Repetitions are the same training, whose parameters are kept once.
            return run_timed(job.config, settings if job.repetition == 0 else replace(settings, checkpoints=None))
        timed_result = (store.result_if_readable(Job(job.config, 0).name) if timed_before else None) or {}
        if "failed" in timed_result:
            return {"failed": "not recorded, because its timed run failed"}
        recorded = run_profiled(job.config, settings, store.folder / "traces" / job.config.name)
        found: dict[str, Any] = msgspec.to_builtins(recorded)
        return found
    except BenchRunError as error:
        return {"failed": str(error)}


def results(configs: Sequence[BenchConfig], repeat: int, store: Store) -> dict[BenchConfig, list[dict[str, Any]]]:
    """Read the repetitions of each configuration from disk."""
    read = {config: [store.result(Job(config, number).name) for number in range(repeat)] for config in configs}
    return {config: [one for one in repetitions if one is not None] for config, repetitions in read.items()}


def recordings(
    configs: Sequence[BenchConfig], store: Store
) -> tuple[dict[BenchConfig, RecordedFigures], dict[BenchConfig, str]]:
    """Read the figures of the recorded runs from disk, and why others have none."""
    found, missing = {}, {}
    for config in configs:
        try:
            result = store.result(Job(config, -1).name)
            if result is not None and "failed" in result:
                missing[config] = str(result["failed"])
            elif result is not None:
                found[config] = msgspec.convert(result, RecordedFigures)
        except msgspec.ValidationError as error:
            missing[config] = f"its recorded figures are of another version: {error}"
    return found, missing
