"""``dptrace sweep``: the same training with several values of an option, and which of them is best."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dptrace.bench.sweep.points import configs
from dptrace.commands.bench import local_device_count, run_jobs, training_options
from dptrace.commands.shared.options import json_option, quiet_option
from dptrace.commands.shared.output import console, emit, json_text, print_hint, print_notes, write_text
from dptrace.core.text import sanitize
from dptrace.errors import UsageError
from dptrace.record.options.models import MODELS

if TYPE_CHECKING:
    from dptrace.bench.matrix import BenchConfig
    from dptrace.bench.store import Store
    from dptrace.bench.sweep.result import SweepRequest, SweepResult

_SWEPT = ("bucket_cap_mb", "micro_batches", "batch_size", "compress")

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
@click.option("--compress", metavar="LIST", help="Gradient compressions: none,fp16,bf16,powersgd,topk,int8.")
@click.option("--mode", type=click.Choice(["ddp", "accumulate"]), default="ddp", help="How to train. [ddp]")
@click.option("--model", type=click.Choice(list(MODELS)), default="resnet18", show_default=True, help="What to train.")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of CIFAR-10's binary files, for resnet18.")
@click.option("--gpus", type=click.IntRange(1), metavar="N", help="Ranks [default: all GPUs; 2 on CPU].")
@training_options("sweep", epochs=1, steps=10)
@click.option("--links", type=click.Path(path_type=Path), help="Predict bucket sizes from this file of dptrace links.")
@click.option("--checkpoints/--no-checkpoints", default=True, help="Keep the final parameters of each run.")
@json_option
@quiet_option
def command(**options: Any) -> None:
    """Train the same model with several values of an option, and find which is best, and why.

    For each value: the seconds of a step over the last 20 steps, timed without the profiler; from a recorded run the
    communication fraction, exposed communication, and the number and size of the collectives; and the value that a
    fitted line alpha + beta·n predicts. Several options together are swept in every combination.

    The folder gets sweep.html, sweep.json, table.csv, table.md, epochs.csv (each epoch), buckets.csv (each bucket's
    times), step.svg, exposed.svg, the recorded runs in traces/ and the final parameters in checkpoints/.
    """
    from dptrace.bench.sweep.result import SweepRequest, sweep_result

    cells, chosen, notes = _cells(options)
    links = None
    if options["links"] is not None:
        from dptrace.bench.links.launch import read_links
        from dptrace.bench.sweep.bucket_cap import fit_from_links

        links = fit_from_links(read_links(options["links"]), str(options["links"]), cells[0].gpus)
    request = SweepRequest(cells, chosen, options["epochs"], options["repeat"], links)
    result = sweep_result(request, _measured(options, request), notes)
    _write(options["output"], result)
    _show(result.content, options)
    if all(point["failed"] for point in result.content["points"]):
        sys.exit(1)


def _cells(options: dict[str, Any]) -> tuple[list[BenchConfig], dict[str, tuple[str, ...]], list[str]]:
    """Return the runs, the swept values and notes; refuse before any run what would fail in it."""
    from dptrace.bench.sweep.points import values
    from dptrace.record.options.parse import check_training

    given = {field.replace("_", "-"): options[field] for field in _SWEPT if options[field] is not None}
    chosen = {name: values(name, text) for name, text in given.items()}
    data = options["data"]
    defaults = {"checkpoint_activations": False, "amp": None, "dtype": None}
    check_training({**defaults, "model": options["model"], "data": data})
    if data is not None and not data.is_dir():
        raise UsageError(f"--data {data}: not a folder.")
    most, on_gpus = local_device_count()
    gpus = (most if on_gpus else min(most, 2)) if options["gpus"] is None else options["gpus"]
    if gpus > most:
        raise UsageError(f"--gpus {gpus}: this machine has only {most}.")
    cells = configs(options["mode"], options["model"], gpus, chosen)
    notes = [] if on_gpus else ["No GPU found: ranks are processes with gloo on CPU that share its cores."]
    return cells, chosen, notes


def _measured(options: dict[str, Any], request: SweepRequest) -> Store:
    """Run what the folder has no result of; return the results."""
    from dptrace.bench.execute import Settings
    from dptrace.bench.schedule import jobs
    from dptrace.bench.store import Store

    folder: Path = options["output"]
    data = None if options["data"] is None else str(options["data"].resolve())
    store = Store(folder)
    plan = {"sweep": request.chosen, "cells": [config.name for config in request.configs], "data": data}
    planned = {key: options[key] for key in ("epochs", "repeat", "steps")}
    store.begin(plan | planned, options["resume"], options["force"])
    if options["checkpoints"]:
        (folder / "checkpoints").mkdir(exist_ok=True)
    settings = Settings(
        epochs=options["epochs"],
        steps=options["steps"],
        arguments=() if data is None else (f"--data={data}",),
        timeout_s=options["timeout"],
        checkpoints=folder / "checkpoints" if options["checkpoints"] else None,
        verb="sweep",
    )
    run_jobs(jobs(request.configs, options["repeat"]), settings, store, options["verbosity"])
    return store


def _write(folder: Path, result: SweepResult) -> None:
    """Write the files of the results, each whole or not at all."""
    import pandas as pd

    from dptrace.viewers.base.svg_renderer import svg
    from dptrace.viewers.benchmarks import sweep_page, sweep_table

    content = result.content
    options = list(content["values"])
    points = [{**{name: p["options"][name] for name in options}, **p} for p in content["points"]]
    hidden = ("options", "x", "series", "cost_s")
    table = [{name: value for name, value in point.items() if name not in hidden} for point in points]
    texts = {
        "sweep.json": json_text(content),
        "sweep.html": sweep_page.document(content),
        "step.svg": svg(sweep_page.steps(content)),
        "exposed.svg": svg(sweep_page.exposed(content)),
        "table.md": sweep_table.markdown(content),
        "table.csv": pd.DataFrame(table).to_csv(index=False),
        "epochs.csv": pd.DataFrame(result.epochs).to_csv(index=False),
        "buckets.csv": pd.DataFrame(result.buckets).to_csv(index=False),
    }
    for name, text in texts.items():
        write_text(folder / name, text)


def _show(content: dict[str, Any], options: dict[str, Any]) -> None:
    from dptrace.viewers.benchmarks import sweep_table

    if options["as_json"]:
        emit(json_text(content), None)
    else:
        sweep_table.print_table(content, console())
        for sentence in content["reading"]:
            click.echo(sanitize(sentence))
    print_notes(content["notes"])
    folder = options["output"]
    print_hint(f"Wrote {folder}. Next: open {folder / 'sweep.html'}", options["verbosity"])
