"""A run's figures for experiment trackers: metrics of each training step, and pages as artifacts.

wandb, MLflow and TensorBoard read their own settings (WANDB_MODE, MLFLOW_TRACKING_URI …); no account is asked for here.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dptrace.analysis.per_gpu.device import step_grid
from dptrace.analysis.per_gpu.split import FIGURES, overlap_percent
from dptrace.core.table import step_number
from dptrace.errors import DptraceError, MissingExtraError
from dptrace.readers.source import redact
from dptrace.run.run import Run

PREFIX = "dptrace/"
_KEPT = ("created", "mode", "model", "script", "parameters", "world_size", "options", "versions")


@dataclass(frozen=True, slots=True)
class Logged:
    """What is sent to a tracker."""

    name: str
    """Of the run."""
    steps: tuple[tuple[int, dict[str, float]], ...]
    """Number of each training step, and its metrics."""
    summary: dict[str, float]
    """The same of the mean step, and MFU where it is known."""
    config: dict[str, Any]
    """What run.json says of the job."""
    pages: tuple[Path, ...]


def logged(run: Run, name: str, pages: Sequence[Path] = ()) -> Logged:
    """Return the metrics of a run: means over the ranks, in ms, and the overlap in percent.

    Raises:
        DptraceError: the run has no steps.
    """
    grid = step_grid(run.devices)
    if not grid.steps:
        raise DptraceError(f"{run.path}: no step to log; record steps, or mark them.")
    ranks = np.maximum(grid.present.sum(axis=0), 1)
    known = [figure for figure in FIGURES if grid.is_known(figure).all()]
    columns = {figure: grid.figures[figure].sum(axis=0) / ranks / 1e6 for figure in known}
    steps = [_metrics({figure: float(column[at]) for figure, column in columns.items()}) for at in range(len(ranks))]
    found = [number for number in map(step_number, grid.steps) if number is not None]
    numbers = found if len({*found}) == len(steps) else range(len(steps))
    summary = _metrics({figure: float(column.mean()) for figure, column in columns.items()})
    if run.efficiency.mfu is not None:
        summary[f"{PREFIX}mfu_percent"] = 100 * run.efficiency.mfu
    config = {key: run.metadata[key] for key in _KEPT if key in run.metadata}
    return Logged(name, tuple(zip(numbers, steps, strict=True)), summary, config, tuple(pages))


def _metrics(figures: dict[str, float]) -> dict[str, float]:
    row = {f"{PREFIX}{name.removesuffix('_ns')}_ms": value for name, value in figures.items()}
    percent = overlap_percent(figures.get("overlapped_comm_ns"), figures.get("exposed_comm_ns"))
    if percent is not None:
        row[f"{PREFIX}overlap_percent"] = percent
    return row


def to_wandb(content: Logged, project: str | None, run_id: str | None, folder: Path | None) -> str:
    """Log to Weights & Biases, into the run with an id if one is given; return where it is."""
    try:
        import wandb
    except ImportError:
        raise MissingExtraError("Logging to Weights & Biases needs wandb", "wandb") from None

    try:
        run = wandb.init(
            project=project or "dptrace",
            name=content.name,
            id=run_id,
            resume="allow" if run_id else None,
            dir=folder,
            config=content.config,
        )
        # An axis of their own: wandb drops what is logged at a step before its last one, as into a run that went on.
        axis = f"{PREFIX}train_step"
        run.define_metric(axis)
        run.define_metric(f"{PREFIX}*", step_metric=axis)
        for number, metrics in content.steps:
            run.log({axis: number, **metrics})
        run.summary.update({f"{name}_mean": value for name, value in content.summary.items()})
        if content.pages:
            artifact = wandb.Artifact(f"dptrace-{run.id}", type="dptrace")
            for page in content.pages:
                artifact.add_file(str(page))
            run.log_artifact(artifact)
        run.finish()
    except wandb.Error as error:
        text = str(error).rstrip(". ")
        raise DptraceError(f"Weights & Biases: {text}. WANDB_MODE=offline logs to a folder.") from error
    return str(run.url or Path(run.dir).parent)


def to_mlflow(content: Logged, project: str | None, run_id: str | None, folder: Path | None) -> str:
    """Log to MLflow, into the run with an id if one is given; return where it is."""
    try:
        import mlflow
        from mlflow.entities import Metric, Param
        from mlflow.exceptions import MlflowException
    except ImportError:
        raise MissingExtraError("Logging to MLflow needs mlflow", "mlflow") from None
    if folder is not None:
        # Its stores in folders are to be asked for.
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        mlflow.set_tracking_uri(folder.resolve().as_uri())
    # MLflow's own seven retries wait for minutes where no server answers.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "3")
    try:
        client = mlflow.MlflowClient()
        if own := run_id is None:
            found = client.get_experiment_by_name(project or "dptrace")
            experiment = found.experiment_id if found else client.create_experiment(project or "dptrace")
            run_id = client.create_run(experiment, run_name=content.name).info.run_id
        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, number) for number, row in content.steps for name, value in row.items()]
        metrics += [Metric(f"{name}_mean", value, now, 0) for name, value in content.summary.items()]
        for first in range(0, len(metrics), _BATCH):
            client.log_batch(run_id, metrics=metrics[first : first + _BATCH])
        client.log_batch(run_id, params=[Param(key, str(value)[:500]) for key, value in content.config.items()])
        for page in content.pages:
            client.log_artifact(run_id, str(page), "dptrace")
        if own:
            client.set_terminated(run_id)
    except MlflowException as error:
        raise DptraceError(f"MLflow: {_why(str(error), mlflow.get_tracking_uri())}") from error
    return f"{mlflow.get_tracking_uri()}, run {run_id}"


def _why(text: str, uri: str) -> str:
    """Return why MLflow can't log, and what to do."""
    first = text.strip().partition("\n")[0].rstrip(". ")
    if uri.startswith(("http://", "https://")):
        return f"{first}. Is MLFLOW_TRACKING_URI the address of a server that runs? Or name a --folder to write into."
    if "unsupported URI" in first or "MLFLOW_ALLOW_FILE_STORE" in first:
        # The database that MLflow takes by default needs all of mlflow, and a folder is to be asked for.
        return (
            f"can't write to {redact(uri)}, as it is installed and set up here. Name a --folder to write into, or set "
            "MLFLOW_TRACKING_URI to the address of a server."
        )
    return f"{first}. Set MLFLOW_TRACKING_URI, or name a --folder."


_BATCH = 1_000
"""Metrics that MLflow's servers take at once."""


def to_tensorboard(content: Logged, project: str | None, run_id: str | None, folder: Path | None) -> str:
    """Write TensorBoard's event file into a folder, and the pages beside it; return the folder."""
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise MissingExtraError("Logging for TensorBoard needs tensorboardX", "tensorboard") from None
    folder = folder or Path("runs") / "tensorboard" / content.name
    with SummaryWriter(str(folder)) as writer:
        for number, metrics in content.steps:
            for name, value in metrics.items():
                writer.add_scalar(name, value, number)
        lines = [f"| {name} | {value:,.4g} |" for name, value in content.summary.items()]
        writer.add_text(f"{PREFIX}mean_step", "\n".join(("| figure | mean |", "| --- | --: |", *lines)))
    for page in content.pages:
        shutil.copyfile(page, folder / page.name)
    return str(folder)


TRACKERS: dict[str, Callable[[Logged, str | None, str | None, Path | None], str]] = {
    "wandb": to_wandb,
    "mlflow": to_mlflow,
    "tensorboard": to_tensorboard,
}
"""By the names of ``dptrace log --to``."""
