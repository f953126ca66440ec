"""``dptrace sweep``: the same training with several values of an option, and which of them is best."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dptrace.bench.sweep_points import SWEPT, SWEPT_MODES, check_samples, configs
from dptrace.commands.bench import local_device_count, run_jobs, training_options
from dptrace.commands.shared.answer import JSON, TEXT, Answer, Destination, Make, write_files
from dptrace.commands.shared.numbers import Whole
from dptrace.commands.shared.options import Toggle, json_option, quiet_option
from dptrace.commands.shared.output import QUIET, print_hint, print_notes
from dptrace.core.units import sanitize
from dptrace.errors import UsageError
from dptrace.record.options.modes import MODELS

if TYPE_CHECKING:
    from rich.console import Console

    from dptrace.bench.store import BenchConfig, Store
    from dptrace.bench.sweep import SweepRequest, SweepResult


_MODEL = f"{', '.join(MODELS)}. [resnet18]"
_EXAMPLES = """\b
Examples:
  dptrace sweep --bucket-cap-mb 0.5,1,2,4,8
  dptrace sweep --bucket-cap-mb 1,4,16 --model xlarge --gpus 4 --links links.json
  dptrace sweep --mode accumulate --micro-batches 1,2,4 --batch-size 256,512
"""


@click.command(epilog=_EXAMPLES)
@click.option("--bucket-cap-mb", metavar="LIST", help="Sizes of DDP's buckets in MiB, separated by commas.")
@click.option("--micro-batches", metavar="LIST", help="Numbers of micro-batches per step, with --mode accumulate.")
@click.option("--batch-size", metavar="LIST", help="Samples per step, over all ranks.")
@click.option(
    "--compress",
    metavar="LIST",
    help="Gradient compressions of dptrace record: none,fp16,int8,topk …",
)
@click.option("--mode", type=click.Choice(SWEPT_MODES), default="ddp", help="How to train. [ddp]")
@click.option("--model", type=click.Choice(list(MODELS)), default="resnet18", metavar="NAME", help=_MODEL)
@click.option("--data", type=click.Path(path_type=Path), help="Folder of CIFAR-10, for resnet18.")
@click.option("--samples", type=Whole(1), metavar="N", help="Train on the first N samples of the data only.")
@click.option(
    "--seed",
    type=Whole(0, (1 << 63) - 1),
    metavar="N",
    default=42,
    help="Seed of parameters, data and its order. [42]",
)
@click.option("--gpus", type=Whole(1), metavar="N", help="Ranks [default: all GPUs; 2 on CPU].")
@training_options("sweep", epochs=1, steps=10)
@click.option("--links", type=click.Path(path_type=Path), help="Predict bucket sizes from this file of dptrace links.")
@click.option("--checkpoints/--no-checkpoints", cls=Toggle, default=True, help="Keep each run's parameters and state.")
@click.option(
    "--inference",
    metavar="LIST",
    default="1,32",
    show_default=True,
    help="Batch sizes at which the model's latency is measured, or none.",
)
@json_option
@quiet_option
def command(**options: Any) -> None:
    """Train the same model with several values of an option, and find which is best, and why.

    For each value: the seconds of a step over the last 20 steps, timed without the profiler; from a recorded run the
    communication fraction s, exposed communication, and the number and size of the collectives; the value that a
    fitted line alpha + beta·n predicts; and the latency of the trained model for an image. Several options together
    are swept in every combination.

    Each epoch is printed as it ends: its seconds, s, and with resnet18 its loss and accuracy on data that it is not
    trained on. An epoch is the training data divided by the batch. Runs that were stopped continue after their last
    epoch with --resume, bit for bit.

    The folder gets sweep.html, sweep.json, table.csv, table.md, epochs.csv (each epoch), buckets.csv (each bucket's
    times), step.svg, exposed.svg, loss.svg, the recorded runs in traces/ and parameters and state in checkpoints/.
    """
    from dptrace.bench.sweep import SweepRequest, sweep_result

    cells, chosen, notes = _cells(options)
    links = None
    if options["links"] is not None:
        from dptrace.bench.bucket_caps import fit_from_links
        from dptrace.bench.links import read_links

        links = fit_from_links(read_links(options["links"]), str(options["links"]), cells[0].gpus)
    request = SweepRequest(cells, chosen, options["epochs"], options["repeat"], links)
    result = sweep_result(request, _measured(options, request), notes)
    _write(options["output"], result)
    _show(result.content, options)
    if all(point["failed"] for point in result.content["points"]):
        sys.exit(1)


def _cells(options: dict[str, Any]) -> tuple[list[BenchConfig], dict[str, tuple[str, ...]], list[str]]:
    """Return the runs, the swept values and notes; refuse before any run what would fail in it."""
    from dptrace.bench.sweep_points import values
    from dptrace.record.options.validation import check_training

    given = {name: options[name.replace("-", "_")] for name in SWEPT}
    chosen = {name: values(name, text) for name, text in given.items() if text is not None}
    data = options["data"]
    defaults = {"checkpoint_activations": False, "amp": None, "dtype": None}
    check_training({**defaults, "model": options["model"], "data": data})
    _inference(options["inference"])
    samples = _training_samples(options)
    most, on_gpus = local_device_count()
    gpus = (most if on_gpus else min(most, 2)) if options["gpus"] is None else options["gpus"]
    if gpus > most:
        raise UsageError(f"--gpus {gpus}: this machine has only {most}.")
    cells = configs(options["mode"], options["model"], gpus, chosen)
    check_samples(cells, samples)
    notes = [] if on_gpus else ["No GPU found: ranks are processes with gloo on CPU that share its cores."]
    return cells, chosen, notes


def _training_samples(options: dict[str, Any]) -> int:
    """Return how many samples the runs train on; read CIFAR-10's files before any run does."""
    from dptrace.record.options.validation import SAMPLES
    from dptrace.trainers.parts.cifar10 import read_images

    if options["data"] is None:
        return min(options["samples"] or SAMPLES, SAMPLES)
    read_images(options["data"], validation=True)
    images = len(read_images(options["data"]).classes)
    return min(options["samples"] or images, images)


def _measured(options: dict[str, Any], request: SweepRequest) -> Store:
    """Run what the folder has no result of; return the results."""
    from dptrace.bench.execute import Settings, jobs
    from dptrace.bench.store import Store

    folder: Path = options["output"]
    data = None if options["data"] is None else str(options["data"].resolve())
    store = Store(folder)
    plan = {"sweep": request.chosen, "cells": [config.name for config in request.configs], "data": data}
    planned = {key: options[key] for key in ("epochs", "repeat", "steps", "samples", "seed", "inference")}
    store.begin(plan | planned, options["resume"], options["force"])
    if options["checkpoints"]:
        (folder / "checkpoints").mkdir(exist_ok=True)
    settings = Settings(
        epochs=options["epochs"],
        steps=options["steps"],
        seed=options["seed"],
        arguments=tuple(
            f"--{name}={value}"
            for name, value in (("data", data), ("samples", options["samples"]))
            if value is not None
        ),
        timeout_s=options["timeout"],
        checkpoints=folder / "checkpoints" if options["checkpoints"] else None,
        inference=_inference(options["inference"]),
        show_epoch=partial(_show_epoch, store) if options["verbosity"] != QUIET else None,
        verb="sweep",
    )
    run_jobs(jobs(request.configs, options["repeat"], profile_first=True), settings, store, options["verbosity"])
    return store


def _inference(text: str) -> str | None:
    """Return the batch sizes of --inference; None for none.

    Raises:
        UsageError: one is no number of samples.
    """
    from dptrace.record.options.catalog import batch_sizes

    if text.strip() == "none":
        return None
    try:
        return ",".join(map(str, batch_sizes(text)))
    except ValueError as error:
        raise UsageError(f"--inference: {error}; give numbers such as 1,32, or none.") from None


def _show_epoch(store: Store, config: BenchConfig, epoch: dict[str, Any]) -> None:
    """Print an epoch that has just ended, with the communication fraction of the steps that were recorded before."""
    from dptrace.bench.execute import recordings
    from dptrace.trainers.parts.epoch_results import epoch_text

    recorded = recordings([config], store)[0].get(config)
    line = epoch | {"communication_fraction": None if recorded is None else recorded.fraction}
    click.echo(sanitize(f"{config}: {epoch_text(line)}"), err=True)


def _write(folder: Path, result: SweepResult) -> None:
    """Write the files of the results, each whole or not at all."""
    import pandas as pd

    from dptrace.viewers.base.svg import svg
    from dptrace.viewers.benchmarks import pages, sweep_table

    content = result.content
    hidden = ("options", "x", "series", "cost_s", "inference")
    table = []
    for point in content["points"]:
        row = point["options"] | {name: value for name, value in point.items() if name not in hidden}
        for one in point["inference"]:
            row |= {f"inference_{one['batch_size']}_{name}": one[name] for name in ("sample_p50_s", "sample_p95_s")}
        table.append(row)
    written: dict[str, Make] = {
        "sweep.json": lambda: content,
        "sweep.html": lambda: pages.sweep_document(content),
        "step.svg": lambda: svg(sweep_table.steps(content)),
        "exposed.svg": lambda: svg(sweep_table.exposed(content)),
        "loss.svg": lambda: svg(sweep_table.loss(content)),
        "table.md": lambda: sweep_table.markdown(content),
        "table.csv": lambda: pd.DataFrame(table),
        "epochs.csv": lambda: pd.DataFrame(result.epochs),
        "buckets.csv": lambda: pd.DataFrame(result.buckets),
    }
    write_files(folder, written)


def _show(content: dict[str, Any], options: dict[str, Any]) -> None:
    from dptrace.viewers.benchmarks import sweep_table

    def tables(console: Console) -> None:
        sweep_table.print_table(content, console)
        for sentence in content["reading"]:
            click.echo(sanitize(sentence))

    to = Destination(((JSON if options["as_json"] else TEXT, None),), options["force"], options["verbosity"])
    to.write(Answer({TEXT: tables, JSON: lambda: content}))
    print_notes(content["notes"])
    folder = options["output"]
    print_hint(f"Wrote {folder}. Next: open {folder / 'sweep.html'}", options["verbosity"])
