"""``dptrace bench``: the same training in many ways, timed and split, as a table and charts."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.shared.shared import console, print_hint
from dptrace.core.files import atomic_write, check_output
from dptrace.core.subprocess_pool import available_cores
from dptrace.core.text import sanitize
from dptrace.errors import UsageError
from dptrace.record.options.models import MLPS, MODELS
from dptrace.record.options.modes import MODES, trainer

if TYPE_CHECKING:
    from dptrace.bench.matrix import BenchConfig
    from dptrace.bench.schedule import Job
    from dptrace.commands.shared.bench_files import BenchResult

_USUAL_MODES = ("single", "naive", "interleaved", "ddp")


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--models", metavar="LIST", help=f"Models, with commas [default: {','.join(MLPS)}].")
@click.option("--modes", metavar="LIST", help=f"Modes of dptrace record [default: {','.join(_USUAL_MODES)}].")
@click.option("--gpus", metavar="LIST", help="Numbers of GPUs [default: 1,2,4 … as this machine has; 1,2 on CPU].")
@click.option("--epochs", type=click.IntRange(1), default=5, show_default=True, help="Epochs of 32,768 samples.")
@click.option("--repeat", type=click.IntRange(1), default=1, show_default=True, help="Fresh runs of each cell.")
@click.option("--batch-size", type=click.IntRange(1), metavar="N", help="Samples in a step, over all ranks.")
@click.option(
    "--steps", type=click.IntRange(1), default=5, show_default=True, help="Steps of the run that is recorded."
)
@click.option("--no-split", is_flag=True, help="Time only; record nothing.")
@click.option("--script", type=click.Path(path_type=Path), help="Bench this script instead; its own options follow --.")
@click.option("--timeout", type=click.FloatRange(1), metavar="SECONDS", help="End a run that takes longer.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), default=Path("bench"), show_default=True, help="Folder."
)
@click.option("--resume", is_flag=True, help="Go on with the benchmark that is in the folder.")
@click.option("--force", is_flag=True, help="Begin anew where there is one.")
@click.option("--from", "source", type=click.Path(path_type=Path), help="Draw figures measured elsewhere: a CSV file.")
@click.option("--local-loss", is_flag=True, help="Chart rank 0's own loss, not the mean over ranks.")
@click.option("--png", is_flag=True, help="Write the charts as PNG too, beside SVG; needs Chromium.")
@click.option(
    "--csv", type=click.Path(path_type=Path, allow_dash=True), help="Write the table here too; - to print it."
)
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
@click.option("-q", "--quiet", is_flag=True, help="No progress, no advice.")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENTS]...")
def command(**options: Any) -> None:
    """Train the same models in many ways, and compare: epoch time, speedup, communication, overlap.

    Each run is a fresh torchrun, timed without the profiler and then recorded once for its split. Every result is
    on disk as soon as it is there; a benchmark that was stopped goes on with --resume, and a run that fails is a
    row that says why. The folder gets charts.html with six charts and what they say, charts/ with each as a picture,
    table.csv, table.md and bench.json.

    With --script any script is benched that prints one line "RESULTS_JSON: {...}" with "epoch_s" (seconds of each
    epoch) and what else it has of mode, parameters, samples_per_s, comm_s, losses.

    \b
    Examples:
      dptrace bench
      dptrace bench --models small,medium --gpus 1,2 --epochs 1
      dptrace bench --from results.csv -o charts
      dptrace bench --gpus 2,4 --script train.py -- --epochs 3
    """
    if options["csv"] is not None and str(options["csv"]) != "-":
        check_output(options["csv"], options["force"])
    if options["png"]:
        check_png()
    if options["source"] is not None:
        _check_alone(options)
        result = _from_file(options["source"], options["output"], options["force"])
    else:
        if options["arguments"] and options["script"] is None:
            raise UsageError(f"{options['arguments'][0]}: arguments belong to a script; name it with --script.")
        result = _measured(options)
    _print_result(result, options)


def check_png() -> None:
    """Refuse before any run a picture that could not be taken after it.

    Raises:
        UsageError: there is no Chromium.
    """
    from dptrace.viewers.base.screenshot import find_chromium

    if find_chromium() is None:
        raise UsageError(
            "--png needs Chromium or Chrome: install one (Debian: apt-get install chromium), or leave --png out."
        )


def _check_alone(options: dict[str, Any]) -> None:
    """Refuse beside --from what would run something."""
    context = click.get_current_context()
    mine = {"source", "output", "force", "csv", "as_json", "quiet", "local_loss", "png"}
    for name in options.keys() - mine:
        if context.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise UsageError(f"--from draws figures that are there; leave --{name.replace('_', '-')} out.")


def _from_file(path: Path, output: Path, force: bool) -> BenchResult:
    from dptrace.bench.store import PLAN, read_json
    from dptrace.bench.table import rows_from_csv
    from dptrace.commands.shared.bench_files import BenchResult

    rows = rows_from_csv(path)
    if (output / PLAN).is_file() and "plan" in read_json(output / PLAN):
        raise UsageError(f"{output}: holds a benchmark that was run here; name another folder with -o.")
    if output.exists() and any(output.iterdir() if output.is_dir() else [output]) and not force:
        raise UsageError(f"{output}: holds something already; --force overwrites it, -o names another folder.")
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{output}: can't be made: {error.strerror}.") from None
    return BenchResult(rows, f"Figures from {path.name}", here="In these figures", plan={"source": path.name})


def parse_names(text: str | None, usual: tuple[str, ...], known: dict[str, Any], what: str) -> list[str]:
    """Read a list with commas; each name once, in the order given.

    Raises:
        UsageError: a name that is not known.
    """
    given = list(usual) if text is None else [part.strip() for part in text.split(",") if part.strip()]
    chosen = list(dict.fromkeys(given))
    for name in chosen:
        if name not in known:
            raise UsageError(f"{what} {name}: there is none of that name. There are {', '.join(known)}.")
    if not chosen:
        raise UsageError(f"{what}: an empty list.")
    return chosen


def parse_gpu_counts(text: str | None, most: int) -> list[int]:
    """Read numbers of GPUs; without, the powers of two that this machine has.

    Raises:
        UsageError: not numbers from 1 on.
    """
    if text is None:
        return [1 << power for power in range(most.bit_length())]
    try:
        numbers = sorted({int(part) for part in text.split(",")})
    except ValueError:
        numbers = [0]
    if numbers[0] < 1:
        raise UsageError(f"--gpus {text}: give numbers from 1 on, for example 1,2,4.")
    return numbers


def local_device_count() -> tuple[int, bool]:
    """Give how many ranks fit on this machine, and whether on GPUs: on CPU, one for each core, but two anyhow."""
    from dptrace.record.launch.launcher import local_gpu_count

    here = local_gpu_count()
    return (here, True) if here else (max(2, available_cores()), False)


def _measured(options: dict[str, Any]) -> BenchResult:
    from dptrace.bench.execute import Settings
    from dptrace.bench.schedule import jobs, results, run_all
    from dptrace.bench.store import Store
    from dptrace.bench.table import rows
    from dptrace.commands.shared.bench_files import BenchResult, machine_info
    from dptrace.record.launch.launcher import Interrupted

    most, on_gpus = local_device_count()
    usual_most = most if on_gpus else min(most, 2)
    configs, notes = _cells(options, parse_gpu_counts(options["gpus"], usual_most), most)
    settings = Settings(
        epochs=options["epochs"],
        batch_size=options["batch_size"],
        steps=options["steps"],
        script=None if options["script"] is None else str(options["script"]),
        arguments=options["arguments"],
        timeout_s=options["timeout"],
    )
    store = Store(options["output"])
    asked = ("epochs", "repeat", "batch_size", "steps", "arguments", "no_split")
    plan = {
        "cells": [config.name for config in configs],
        "script": settings.script,
        **{key: options[key] for key in asked},
    }
    store.begin(plan, options["resume"], options["force"])
    if not on_gpus:
        notes.append(
            "No GPU here: ranks are processes with gloo on CPU, which share its cores; one rank alone has all."
        )
    work = jobs(configs, options["repeat"], not options["no_split"])
    try:
        with job_progress(work, options["quiet"]) as show:
            run_all(work, settings, store, show)
    except Interrupted as stopped:
        click.echo(f"Interrupted; what has ended is in {options['output']}. Add --resume to go on.", err=True)
        sys.exit(stopped.exit_code)
    found = results(configs, options["repeat"], store)
    return BenchResult(rows(configs, found), _title(options), notes, machine_info(found), plan={"plan": store.plan()})


def _title(options: dict[str, Any]) -> str:
    epochs, repeat = options["epochs"], options["repeat"]
    times = "" if repeat == 1 else f", {repeat} runs each"
    if options["script"] is not None:
        return f"Benchmark of {options['script'].name}{times}"
    return f"Benchmark: {epochs} epoch{'s' * (epochs > 1)}{times}"


def _cells(options: dict[str, Any], numbers: list[int], most: int) -> tuple[list[BenchConfig], list[str]]:
    from dptrace.bench.matrix import BenchConfig, matrix

    script = options["script"]
    if script is None:
        modes = parse_names(options["modes"], _USUAL_MODES, MODES, "--modes")
        models = parse_names(options["models"], MLPS, MODELS, "--models")
        for mode in modes:
            trainer(mode)
        return matrix(models, modes, numbers, most, options["batch_size"])
    given = click.get_current_context().get_parameter_source("epochs") is click.core.ParameterSource.COMMANDLINE
    if given or options["models"] or options["modes"] or options["batch_size"]:
        raise UsageError(
            "--models, --modes, --batch-size and --epochs are for our trainers; a script's own follow --, as in "
            f"--script {script} -- --epochs 3."
        )
    if not script.is_file():
        raise UsageError(f"--script {script}: there is no such file.")
    fit = [number for number in numbers if number <= most]
    if not fit:
        raise UsageError(f"--gpus: this machine has {most}.")
    left_out = [f"{number} GPUs: this machine has {most}." for number in numbers if number > most]
    return [BenchConfig(script.stem, "script", number) for number in fit], left_out


@contextmanager
def job_progress(work: list[Job], quiet: bool) -> Iterator[Callable[[Job, bool], None]]:
    """Show which run is under way and how long the rest will take; line by line where stderr is no terminal."""
    if quiet:
        yield lambda job, done: None
        return
    if not sys.stderr.isatty():

        def line(job: Job, done: bool) -> None:
            if not done:
                click.echo(f"[{work.index(job) + 1}/{len(work)}] {job}", err=True)

        yield line
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}", markup=False))
    # Runs take minutes: the time left is told from all that have ended, not from the last half minute.
    with Progress(*columns, console=console(stderr=True), transient=True, speed_estimate_period=86_400) as bar:
        task = bar.add_task("", total=len(work))

        def update(job: Job, done: bool) -> None:
            bar.update(task, description=str(job), advance=int(done))

        yield update


def _print_result(result: BenchResult, options: dict[str, Any]) -> None:
    """Write the folder's files, and print the table and what it says."""
    import json

    from dptrace.bench.conclusions import warnings_about
    from dptrace.bench.table import as_dict, frame
    from dptrace.commands.shared.bench_files import draw_charts, write
    from dptrace.viewers.benchmarks import bench_table

    folder: Path = options["output"]
    result.notes.extend(warnings_about(result.rows, on_cpu=set(result.machine.get("devices", [])) == {"CPU"}))
    charts = draw_charts(result, options["local_loss"])
    written = write(folder, result, charts, options["png"])
    to_stdout = str(options["csv"]) == "-"
    if to_stdout:
        click.echo(frame(result.rows).to_csv(index=False), nl=False)
    elif options["csv"] is not None:
        with atomic_write(options["csv"]) as temporary:
            frame(result.rows).to_csv(temporary, index=False)
    if options["as_json"]:
        click.echo(
            json.dumps({"schema": 1, "rows": [as_dict(row) for row in result.rows], "notes": result.notes}, indent=1)
        )
    elif not to_stdout:
        console().print(bench_table.table(result.rows, result.title))
        for sentence in (said for chart, _ in charts[:2] for said in chart.sentences):
            click.echo(sanitize(sentence))
    for note in [*result.notes, *bench_table.failures(result.rows)]:
        click.echo(f"! {sanitize(note)}", err=True)
    print_hint(
        f"Wrote {folder}: {', '.join(written)}. Next: open {folder / 'charts.html'}",
        "quiet" if options["quiet"] else "normal",
    )
    if all(row.failed for row in result.rows):
        click.echo("Error: every run failed.", err=True)
        sys.exit(1)
