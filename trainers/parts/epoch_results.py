"""The results of timed epochs: of each when it ends, of all at the end, and as a line of text. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

from dptrace.errors import DptraceError
from dptrace.record.run_folder import mean_losses

if TYPE_CHECKING:
    from dptrace.record.options.catalog import Options


LAST_STEPS = 20
"""Number of steps at the end of an epoch that its typical step is taken of."""
QUALITY = ("validation_loss", "accuracy", "training_loss", "training_accuracy")
"""What is measured after an epoch, where the model has data to validate on."""


def epoch_result(ranks: Sequence[Mapping[str, Any]], cold: int = 0) -> dict[str, Any]:
    """Combine the laps of an epoch.

    Args:
        ranks: ``laps`` (ns) and ``losses`` of each step, for each rank in order.
        cold: steps at the beginning that are not typical, since the training has just continued from a checkpoint: for
            them the epoch counts the mean of the others. 0 if there are no others.

    Returns:
        ``seconds`` (on the slowest rank, for which all others wait), ``step_s`` (on the slowest rank of each step),
        ``losses`` (mean over ranks: the loss of the batch), ``local_losses`` (of rank 0's shard).
    """
    steps = len(ranks[0]["laps"])
    cold = cold if cold < steps else 0
    laps = [rank["laps"][cold:] for rank in ranks]
    return {
        "seconds": max(map(sum, laps)) / 1e9 * steps / (steps - cold),
        "step_s": [max(lap) / 1e9 for lap in zip(*laps, strict=True)],
        "losses": mean_losses([rank["losses"] for rank in ranks]),
        "local_losses": mean_losses([ranks[0]["losses"]]),
    }


def epoch_line(epoch: Mapping[str, Any], number: int, epochs: int, samples: int) -> dict[str, Any]:
    """Return the sentence on an epoch when it ends.

    Args:
        epoch: from :func:`epoch_result`, with the figures of :data:`QUALITY` that were measured.
        samples: of the epoch.
    """
    losses = [loss for loss in epoch["losses"][-LAST_STEPS:] if loss is not None]
    return {
        "epoch": number,
        "epochs": epochs,
        "seconds": epoch["seconds"],
        "samples_per_s": samples / epoch["seconds"],
        "step_p50_s": median(epoch["step_s"][-LAST_STEPS:]),
        "loss": fmean(losses) if losses else None,
        **{name: epoch[name] for name in QUALITY if name in epoch},
    }


def epoch_text(line: Mapping[str, Any]) -> str:
    """Return one sentence on an epoch: what :func:`epoch_line` returns, and ``communication_fraction`` if it is known.

    >>> epoch_text({"epoch": 1, "epochs": 2, "seconds": 2.5, "samples_per_s": 1000.0, "loss": 1.75, "accuracy": 0.5})
    'epoch 1 of 2: 2.50 s, 1,000 samples/s, loss 1.750, accuracy 50.0 %'
    """
    parts = [f"{line['seconds']:.2f} s", f"{line['samples_per_s']:,.0f} samples/s"]
    for name, title in (
        *(("communication_fraction", "s"), ("loss", "loss"), ("training_accuracy", "training accuracy")),
        *(("validation_loss", "validation loss"), ("accuracy", "accuracy")),
    ):
        value = line.get(name)
        if value is not None:
            parts.append(f"{title} {value:.3f}" if name.endswith("loss") else f"{title} {100 * value:.1f} %")
    return f"epoch {line['epoch']} of {line['epochs']}: {', '.join(parts)}"


def results(epochs: Sequence[Mapping[str, Any]], metadata: Mapping[str, Any], steps_per_epoch: int) -> dict[str, Any]:
    """Combine the results of all epochs.

    Args:
        epochs: from :func:`epoch_result`, with the figures of :data:`QUALITY` that were measured.
        metadata: of the training; its ``batch_size`` determines the throughput.

    Returns:
        *metadata*, with ``epoch_s``, ``avg_epoch_s``, ``samples_per_s``, ``epoch_step_p50_s`` (the median of the last
        steps of each epoch), ``step_s``, ``losses``, ``local_losses`` of all epochs, and of each epoch the figures of
        :data:`QUALITY`.
    """
    seconds = [epoch["seconds"] for epoch in epochs]
    quality = {name: [epoch.get(name) for epoch in epochs] for name in QUALITY if name in epochs[-1]}
    return {
        "schema": 1,
        **metadata,
        "epochs": len(epochs),
        "steps_per_epoch": steps_per_epoch,
        "epoch_s": seconds,
        "avg_epoch_s": fmean(seconds),
        "samples_per_s": metadata["batch_size"] * steps_per_epoch / fmean(seconds),
        "epoch_step_p50_s": [median(epoch["step_s"][-LAST_STEPS:]) for epoch in epochs],
        **{name: [item for epoch in epochs for item in epoch[name]] for name in ("step_s", "losses", "local_losses")},
        **quality,
    }


def epochs_before(options: Options) -> list[dict[str, Any]]:
    """Return the results of the epochs before the checkpoint from which a training continues.

    Raises:
        DptraceError: the checkpoint does not hold them.
    """
    steps = options.first_step - options.warmup if options.first_step else 0
    history = options.epoch_results
    whole = isinstance(history, list | tuple) and len(history) * options.steps_per_epoch == steps
    if not whole or not all(map(_is_result, history)):
        raise DptraceError(
            f"The checkpoint of step {options.first_step} does not hold the results of the epochs before it. Choose "
            "another folder with --checkpoints, or leave --resume out."
        )
    return list(history)


def _is_result(epoch: Any) -> bool:
    names = ("step_s", "losses", "local_losses")
    lists = isinstance(epoch, dict) and all(isinstance(epoch.get(name), list) for name in names)
    if not lists or not isinstance(epoch.get("seconds"), float) or epoch["seconds"] <= 0:
        return False
    numbers = [value for name in names for value in epoch[name]] + [epoch.get(name) for name in QUALITY]
    return bool(epoch["step_s"]) and all(value is None or isinstance(value, float) for value in numbers)
