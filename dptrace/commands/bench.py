"""``dptrace bench``: ways to train, timed and split, as a table and charts."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.shared.answer import CSV, JSON, PNG, TEXT, Answer, Destination, Make, drawn, write_files
from dptrace.commands.shared.numbers import NumberType, Whole
from dptrace.commands.shared.options import (
    Decorator,
    force_option,
    given_options,
    group,
    json_option,
    quiet_option,
)
from dptrace.commands.shared.output import NORMAL, print_hint, print_notes, progress
from dptrace.core.files import make_folder, note_inputs, note_output, unreadable
from dptrace.core.subprocess_pool import available_cores
from dptrace.core.units import plural, sanitize
from dptrace.errors import DptraceError, UsageError
from dptrace.record.options.modes import MLPS, MODELS, MODES, trainer

if TYPE_CHECKING:
    from rich.console import Console

    from dptrace.bench.conclusions import ChartText
    from dptrace.bench.execute import Job, Settings
    from dptrace.bench.store import BenchConfig, Store
    from dptrace.bench.table import BenchResult
    from dptrace.viewers.base.marks import Drawing


_DEFAULT_MODES = ("single", "naive", "interleaved", "ddp")


def training_options(folder: str, epochs: int, steps: int) -> Decorator:
    """Return the options of a verb that trains many times and keeps each result in a folder."""
    count: dict[str, Any] = {"type": Whole(1), "metavar": "N", "show_default": True}
    path: dict[str, Any] = {"type": click.Path(path_type=Path), "default": Path(folder), "show_default": True}
    return group(
        click.option("--epochs", default=epochs, help="Epochs of each run.", **count),
        click.option("--repeat", default=1, help="How often to run each.", **count),
        click.option("--steps", default=steps, help="Steps to record.", **count),
        click.option("--timeout", type=NumberType(1, 1e9), metavar="SECONDS", help="Stop a run that takes longer."),
        click.option("-o", "--output", help="Folder to write.", **path),
        click.option("--resume", is_flag=True, help="Continue where the folder's runs stopped."),
        force_option,
    )


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--models", metavar="LIST", help=f"Models, separated by commas [default: {','.join(MLPS)}].")
@click.option("--modes", metavar="LIST", help=f"Modes of dptrace record [default: {','.join(_DEFAULT_MODES)}].")
@click.option("--gpus", metavar="LIST", help="Numbers of GPUs [default: 1,2,4 … of this machine; 1,2 on CPU].")
@click.option("--batch-size", type=Whole(1), metavar="N", help="Samples per step, over all ranks.")
@click.option("--no-record", is_flag=True, help="Time only, without recorded runs.")
@click.option("--script", type=click.Path(path_type=Path), help="Benchmark this script; its own options follow --.")
@training_options("bench", epochs=5, steps=5)
@click.option("--from", "source", type=click.Path(path_type=Path), help="Draw the figures of a CSV file.")
@click.option("--local-loss", is_flag=True, help="Chart rank 0's loss instead of the mean over ranks.")
@click.option("--png", is_flag=True, help="Write the charts as PNG in addition to SVG.")
@click.option(
    "--csv",
    type=click.Path(path_type=Path, allow_dash=True),
    is_flag=False,
    flag_value=Path("-"),
    metavar="[FILE]",
    help="Print the table as CSV, or also write it to FILE.",
)
@json_option
@quiet_option
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]...")
def command(**options: Any) -> None:
    """Benchmark ways to train the same models: epoch time, speedup, communication, overlap.

    Each run starts torchrun, is timed without the profiler and then recorded once for its split. An epoch is 32,768
    samples. Every result is saved at once: --resume continues a benchmark that was stopped, and a run that fails is a
    row with the reason. The folder gets charts.html with six charts and conclusions, charts/ with each chart as a
    picture, table.csv, table.md and bench.json.

    --script benchmarks any script that prints one line "RESULTS_JSON: {...}" with "epoch_s" (seconds of each epoch)
    and, optionally, mode, parameters, samples_per_s, comm_s and losses.

    \b
    Examples:
      dptrace bench
      dptrace bench --models small,medium --gpus 1,2 --epochs 1
      dptrace bench --from results.csv -o charts
      dptrace bench --gpus 2,4 --script train.py -- --epochs 3
    """
    table, as_json = options["csv"], options["as_json"]
    to_stdout = str(table) == "-"
    if to_stdout and as_json:
        raise UsageError("Choose one of --json and --csv.")
    printed = JSON if as_json else CSV if to_stdout else TEXT
    to = Destination(((printed, None),), options["force"], options["verbosity"])
    if table is not None and not to_stdout:
        to = to.also(CSV, table)
    if options["png"]:
        from dptrace.viewers.base.render import check_png

        check_png()
    if options["source"] is not None:
        usable = {"source", "output", "force", "csv", "as_json", "verbosity", "local_loss", "png"}
        for name in sorted(given_options() - usable):
            raise UsageError(f"--from draws existing figures and runs nothing; leave --{name.replace('_', '-')} out.")
        result = _from_file(options["source"], options["output"], options["force"])
    else:
        if options["arguments"] and options["script"] is None:
            raise UsageError(f"{options['arguments'][0]}: only a script takes arguments; name it with --script.")
        result = _measured(options)
    _print_result(result, to, options)


def _from_file(path: Path, output: Path, force: bool) -> BenchResult:
    from dptrace.bench.store import PLAN, read_json
    from dptrace.bench.table import BenchResult, rows_from_csv

    rows = rows_from_csv(path)
    if (output / PLAN).is_file() and "plan" in read_json(output / PLAN):
        raise UsageError(f"{output}: holds a benchmark that was run here; choose another folder with -o.")
    if output.exists() and any(output.iterdir() if output.is_dir() else [output]) and not force:
        raise UsageError(f"{output}: is not empty; --force overwrites it, -o chooses another folder.")
    note_output(output)
    make_folder(output)
    return BenchResult(rows, f"Figures from {path.name}", here="In these figures", plan={"source": path.name})


def parse_names(text: str | None, default: tuple[str, ...], known: dict[str, Any], option: str) -> list[str]:
    """Parse a list with commas; each name once, in the order given.

    Raises:
        UsageError: a name is not known, or the list is empty.
    """
    given = list(default) if text is None else [part.strip() for part in text.split(",") if part.strip()]
    chosen = list(dict.fromkeys(given))
    for name in chosen:
        if name not in known:
            raise UsageError(f"{option} {name}: unknown; choose from {', '.join(known)}.")
    if not chosen:
        raise UsageError(f"{option}: the list is empty.")
    return chosen


def parse_gpu_counts(text: str | None, most: int) -> list[int]:
    """Parse a list of numbers of GPUs; the default is the powers of two up to *most*.

    Raises:
        UsageError: an entry is not a positive integer.
    """
    if text is None:
        return [1 << power for power in range(most.bit_length())]
    try:
        numbers = sorted({int(part) for part in text.split(",")})
    except ValueError:
        numbers = [0]
    if numbers[0] < 1:
        raise UsageError(f"--gpus {text}: expected positive integers, for example 1,2,4.")
    return numbers


def local_device_count() -> tuple[int, bool]:
    """Return how many ranks fit on this machine, and whether on GPUs; on CPU one per core, but at least two."""
    from dptrace.record.launch.launcher import local_gpu_count

    gpus = local_gpu_count()
    return (gpus, True) if gpus else (max(2, available_cores()), False)


def _measured(options: dict[str, Any]) -> BenchResult:
    from dptrace.bench.execute import Settings, jobs, recordings, results
    from dptrace.bench.store import Store
    from dptrace.bench.table import BenchResult, machine_info, rows

    most, on_gpus = local_device_count()
    default_most = most if on_gpus else min(most, 2)
    configs, notes = _cells(options, parse_gpu_counts(options["gpus"], default_most), most)
    settings = Settings(
        epochs=options["epochs"],
        batch_size=options["batch_size"],
        steps=options["steps"],
        script=None if options["script"] is None else str(options["script"]),
        arguments=options["arguments"],
        timeout_s=options["timeout"],
    )
    store = Store(options["output"])
    planned = ("epochs", "repeat", "batch_size", "steps", "arguments")
    plan = {
        "cells": [config.name for config in configs],
        "script": settings.script,
        **{key: options[key] for key in planned},
        "no_split": options["no_record"],
    }
    store.begin(plan, options["resume"], options["force"])
    if not on_gpus:
        notes.append(
            "No GPU found: ranks are processes with gloo on CPU that share its cores; a single rank uses all of them."
        )
    run_jobs(jobs(configs, options["repeat"], not options["no_record"]), settings, store, options["verbosity"])
    measured = results(configs, options["repeat"], store)
    plan = {"plan": store.plan()}
    made = rows(configs, measured, recordings(configs, store)[0])
    return BenchResult(made, _title(options), notes, machine_info(measured), plan=plan)


def _title(options: dict[str, Any]) -> str:
    epochs, repeat = options["epochs"], options["repeat"]
    times = "" if repeat == 1 else f", {repeat} runs each"
    if options["script"] is not None:
        return f"Benchmark of {options['script'].name}{times}"
    return f"Benchmark: {plural(epochs, 'epoch')}{times}"


def _cells(options: dict[str, Any], numbers: list[int], most: int) -> tuple[list[BenchConfig], list[str]]:
    from dptrace.bench.store import BenchConfig, matrix

    script = options["script"]
    if script is None:
        modes = parse_names(options["modes"], _DEFAULT_MODES, MODES, "--modes")
        models = parse_names(options["models"], MLPS, MODELS, "--models")
        for mode in modes:
            trainer(mode)
        return matrix(models, modes, numbers, most, options["batch_size"])
    if given_options() & {"epochs", "models", "modes", "batch_size"}:
        raise UsageError(
            "--models, --modes, --batch-size and --epochs are for dptrace's trainers; a script's own follow --, as in "
            f"--script {script} -- --epochs 3."
        )
    if not script.is_file():
        raise UsageError(f"--script {script}: no such file.")
    if not os.access(script, os.R_OK):
        raise DptraceError(unreadable(script, PermissionError()))
    note_inputs([script])
    fit = [number for number in numbers if number <= most]
    if not fit:
        raise UsageError(f"--gpus: this machine has only {most}.")
    left_out = [f"{number} GPUs left out: this machine has {most}." for number in numbers if number > most]
    return [BenchConfig(script.stem, "script", number) for number in fit], left_out


def run_jobs(work: list[Job], settings: Settings, store: Store, verbosity: str) -> None:
    """Run what has no result yet, with progress or a line per run; exit where a signal stops it."""
    from dptrace.bench.execute import run_all
    from dptrace.record.processes import Interrupted

    def show_job(job: Job, done: bool) -> None:
        number = work.index(job) + 1
        show((number - 1 + done) / len(work), f"{number}/{len(work)} {job}")
        if verbosity == NORMAL and not done and not sys.stderr.isatty():
            click.echo(f"[{number}/{len(work)}] {job}", err=True)

    try:
        with progress("Running", verbosity) as show:
            run_all(work, settings, store, show_job)
    except Interrupted as stopped:
        click.echo(f"Interrupted; the finished runs are in {store.folder}. Add --resume to continue.", err=True)
        sys.exit(stopped.exit_code)


def _print_result(result: BenchResult, to: Destination, options: dict[str, Any]) -> None:
    """Write the folder's files, and print the table and its conclusions."""
    from dptrace.bench.conclusions import warnings_about
    from dptrace.bench.table import frame
    from dptrace.viewers.benchmarks import bench_table

    folder: Path = options["output"]
    result.notes.extend(warnings_about(result.rows, result.on_cpu))
    charts = bench_table.draw_charts(result, options["local_loss"])
    reading = {chart.name: list(chart.sentences) or [chart.missing] for chart, _ in charts}
    written = write(folder, result, charts, reading, options["png"])

    def tables(console: Console) -> None:
        console.print(bench_table.table(result.rows, result.title))
        for sentence in (sentence for chart, _ in charts[:2] for sentence in chart.sentences):
            click.echo(sanitize(sentence))

    data = {"schema": 1, "rows": [asdict(row) for row in result.rows], "notes": result.notes, "reading": reading}
    to.write(Answer({TEXT: tables, JSON: lambda: data, CSV: lambda: frame(result.rows)}))
    print_notes([*result.notes, *bench_table.failures(result.rows)])
    print_hint(f"Wrote {folder}: {', '.join(written)}. Next: open {folder / 'charts.html'}", options["verbosity"])
    if all(row.failed for row in result.rows):
        click.echo("Error: every run failed.", err=True)
        sys.exit(1)


# The files that ``dptrace bench`` writes: the table in three formats, the page of charts, each chart as a picture.


_PNG_WIDTH = 1600
"""In pixels."""


def write(
    folder: Path, result: BenchResult, charts: Sequence[tuple[ChartText, Drawing]], reading: Any, png: bool
) -> list[str]:
    """Write all files; return their names within the folder."""
    from dptrace.bench.store import PLAN, SCHEMA, write_json
    from dptrace.bench.table import frame
    from dptrace.viewers.benchmarks import bench_table, pages

    sentences = [sentence for chart, _ in charts for sentence in chart.sentences]
    written: dict[str, Make] = {
        "table.csv": lambda: frame(result.rows),
        "table.md": lambda: bench_table.markdown(result.rows, result.title, [*result.notes, *sentences]),
        "charts.html": lambda: pages.bench_document(result, charts),
    }
    write_files(folder, written)
    (folder / "charts").mkdir(exist_ok=True)
    count = sum(_write_chart(folder / "charts" / chart.name, drawing, png) for chart, drawing in charts)
    tables = {"machine": result.machine, "notes": result.notes, "reading": reading}
    write_json(folder / PLAN, {"schema": SCHEMA, **result.plan, **tables, "rows": [asdict(row) for row in result.rows]})
    return ["charts.html", *([f"charts/ ({count} pictures)"] if count else []), "table.csv", "table.md", PLAN]


def _write_chart(path: Path, drawing: Drawing, png: bool) -> int:
    """Write a chart as SVG and PNG, or delete one that can no longer be drawn. Return the number of files."""
    count = 0
    for form, make in drawn(lambda: drawing, _PNG_WIDTH).items():
        file = path.with_suffix(form.suffixes[0])
        if drawing.message or (form is PNG and not png):
            file.unlink(missing_ok=True)
        else:
            form.write(make, file)
            count += 1
    return count
