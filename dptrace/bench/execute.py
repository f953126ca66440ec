"""Run one benchmark configuration: a torchrun timed without the profiler, then one with it for the split."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dptrace.bench.epoch_lines import EpochLines
from dptrace.bench.matrix import BenchConfig
from dptrace.errors import DptraceError, RecordingError
from dptrace.record.checkpoints.folder import checkpoint_steps
from dptrace.record.epochs.results import QUALITY
from dptrace.record.launch.launcher import launch
from dptrace.record.launch.signals import catch_signals
from dptrace.record.launch.torchrun import Launch, stop_agent, thread_environment
from dptrace.record.options.modes import trainer
from dptrace.record.options.validation import STATEFUL_COMPRESSIONS
from dptrace.record.run_folder.messages import RESULTS

__all__ = ["BenchRunError", "Settings", "parse_results", "run_profiled", "run_timed"]

_POLL_S = 0.05
_LAST_LINES = 6
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
    tell_epoch: Callable[[BenchConfig, dict[str, Any]], None] | None = None
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
    tell = None if settings.tell_epoch is None else partial(settings.tell_epoch, config)
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
    errors = [plain for line in lines if _is_error(plain := re.sub(r"^\[rank\d+\]: ?", "", line))]
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


def run_profiled(config: BenchConfig, settings: Settings, out: Path) -> dict[str, Any]:
    """Record the configuration once and return its split, as means over ranks and steps.

    Returns:
        ``comm_s``, ``communication_fraction`` (of compute and communication),
        ``exposed_comm_s``, ``overlapped_comm_s``, ``idle_s``, ``wall_s`` of a step, ``overlap_percent``,
        ``exposed_share`` (of the wall time), ``collectives`` and ``bytes`` of a step on rank 0, ``run`` (the folder).

    Raises:
        BenchRunError: recording failed, or the recorded run cannot be read.
        Interrupted: a signal arrived.
    """
    has_script = settings.script is not None
    job = Launch(
        out=out,
        force=True,
        script=Path(settings.script) if settings.script is not None else trainer(config.mode),
        arguments=settings.arguments
        if has_script
        else [*_trainer_arguments(config, settings), f"--steps={settings.steps}"],
        processes=config.gpus,
        mode=None if has_script else config.mode,
        schedule={"steps": settings.steps, "warmup": settings.warmup, "wait": 0},
        show_output=False,
        command=["dptrace", settings.verb],
    )
    try:
        runs = launch(job, _Silent())
        if not runs:
            raise RecordingError("an error of the recorder, such as a full disk")
        return _figures(Path(runs[0]["folder"]))
    except DptraceError as error:
        raise BenchRunError(f"recording failed: {error}") from None


class _Silent:
    """Reports nothing: the command shows the progress of the whole matrix."""

    def progress(self, done: int, total: int) -> None: ...

    def state(self, text: str) -> None: ...

    def recorded(self, info: dict[str, Any], goes_on: bool) -> None: ...

    def measured(self, info: dict[str, Any]) -> None: ...

    def message(self, text: str) -> None: ...

    def error(self, text: str) -> None: ...


def _figures(run_folder: Path) -> dict[str, Any]:
    import numpy as np

    from dptrace.load.open import open_run

    run = open_run([str(run_folder)])
    means = {
        name: float(np.mean([split.figures[f"{name}_ns"].mean() for split in run.splits])) / 1e9
        for name in ("exposed_comm", "overlapped_comm", "idle", "wall")
    }
    phases = ("forward_ns", "backward_ns", "optimizer_ns", "other_ns")
    compute = sum(float(np.mean([split.figures[phase].mean() for split in run.splits])) for phase in phases) / 1e9
    comm = means["exposed_comm"] + means["overlapped_comm"]
    kinds = run.splits[0].comm.values()
    return {
        "run": str(run_folder),
        "comm_s": comm,
        "communication_fraction": comm / (comm + compute) if comm + compute else None,
        **{f"{name}_s": value for name, value in means.items()},
        "overlap_percent": 100 * means["overlapped_comm"] / comm if comm else None,
        "exposed_share": means["exposed_comm"] / means["wall"] if means["wall"] else None,
        "collectives": float(sum(kind.count.mean() for kind in kinds)),
        "bytes": float(sum(kind.bytes.mean() for kind in kinds)),
        # Of a step that takes a second: a timed step's figures follow from its own time.
        "tflop": run.efficiency.of_wall(1.0)[0],
        "mfu_s": run.efficiency.of_wall(1.0)[1],
    }
