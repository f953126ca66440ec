"""``dptrace record``: one of dptrace's trainers, or the user's script, recorded on all its ranks."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.core import ParameterSource

from dptrace.commands.record_options import attach, check_windows, window_options, window_settings
from dptrace.commands.shared.numbers import Whole
from dptrace.commands.shared.options import Decorator, check_machines, group, machine_options
from dptrace.commands.shared.output import NORMAL, QUIET, progress
from dptrace.core.units import for_terminal, plural, sanitize
from dptrace.errors import UsageError
from dptrace.record.launch.monitor import Reporter
from dptrace.record.options.catalog import (
    OPTIONS,
    SYNTHETIC_IMAGES,
    Option,
    Schedule,
    TrainerOptions,
    check_model,
    default_model,
)
from dptrace.record.options.command_line import STANDARD_INPUT, Program, check_program, parse_program
from dptrace.record.options.modes import FAMILIES, MODELS, MODES, complete_mode, trainer
from dptrace.record.options.validation import check_ranks, check_training
from dptrace.record.processes import Signals, catch_signals
from dptrace.record.run_folder import (
    RunFolder,
    check_writable,
    checkpoint_folder,
    checkpoint_steps,
    kept_checkpoints_message,
    ranks_elsewhere_note,
)

if TYPE_CHECKING:
    from dptrace.record.launch.torchrun import Launch


# The help of ``dptrace record``: what concerns a user's own script first, the trainers' options on request.


SCRIPT_OPTIONS = ("steps", "warmup", "wait", "out")
"""The trainers' options that apply to a user's script too."""

_HEADINGS = {
    "first": "What to record",
    "end": "When to stop",
    "again": "Recording again, or on demand",
    "recording": "What to write",
    "machines": "Several machines",
    "faults": "When a rank fails",
    "trainers": "dptrace's own trainers instead of a script",
    "other": "Other",
}
_TRAINER_HEADINGS = {
    "first": "Model",
    "training": "How to train",
    "ddp": "DDP",
    "parallel": "Shards, tensors, pipelines and experts",
    "recording": "What to write",
    "faults": "Checkpoints",
}
_GROUPS = {
    **dict.fromkeys(("gpus", "steps", "warmup", "wait", "duration"), "first"),
    **dict.fromkeys(("light", "shapes", "modules", "memory", "use_script_profiler"), "first"),
    **dict.fromkeys(("stop", "timeout"), "end"),
    **dict.fromkeys(("trigger", "repeat", "every", "attach"), "again"),
    **dict.fromkeys(("out", "force", "links"), "recording"),
    **dict.fromkeys(("nnodes", "node_rank", "rdzv_endpoint"), "machines"),
    "max_restarts": "faults",
    **dict.fromkeys(("mode", "help_trainers"), "trainers"),
}
"""The heading of each option of ``--help``. Those that are not here, and not the trainers', are under "Other"."""
_TRAINER_GROUPS = {option.field: option.group for option in OPTIONS if option.field not in SCRIPT_OPTIONS}

_PROGRAMS = (
    "[OPTIONS] SCRIPT [ARGUMENTS]...",
    "[OPTIONS] -m MODULE [ARGUMENTS]...",
    "[OPTIONS] python|torchrun|accelerate launch|srun ... SCRIPT [ARGUMENTS]...",
    "[OPTIONS] --mode MODE [TRAINER OPTIONS]",
)
_TRAINERS = _PROGRAMS[-1]
_PICTURE = """\
step      0             3              13
          | warm-up     | recorded     | written; training continues
          '- --warmup 3 '- --steps 10 -'
profiler    prepares      on             off and on alternately: its overhead
"""
_EXAMPLES = (
    "dptrace record --gpus 4 --steps 5 train.py --epochs 1",
    "dptrace record --gpus 4 -m pkg.train --epochs 1",
    "dptrace record torchrun --nproc-per-node 4 train.py",
)
_TRAINER_EXAMPLES = (
    "dptrace record --mode interleaved --gpus 4",
    "dptrace record --mode ddp --gpus 2 --model small --bucket-cap-mb 4",
)


class RecordCommand(click.Command):
    """A command whose help has headings, a picture and examples."""

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one line per way to name what is recorded."""
        for number, program in enumerate(_PROGRAMS):
            formatter.write_usage(ctx.command_path, program, None if number == 0 else " " * len("Usage: "))

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the description and the picture."""
        super().format_help_text(ctx, formatter)
        with formatter.section("Which steps are recorded, by default"):
            formatter.write("".join(f"  {line}\n" for line in _PICTURE.splitlines()))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options under headings, without those of the trainers."""
        self._format_options(ctx, formatter, trainers=False)

    def format_trainers(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help of the trainers: their modes, options and examples."""
        formatter.write_usage(ctx.command_path, _TRAINERS)
        for family, heading in FAMILIES.items():
            rows = [(name, mode.description) for name, mode in MODES.items() if mode.family == family]
            with formatter.section(heading):
                formatter.write_dl(rows)
        self._format_options(ctx, formatter, trainers=True)
        _write_examples(formatter, _TRAINER_EXAMPLES)

    def _format_options(self, ctx: click.Context, formatter: click.HelpFormatter, trainers: bool) -> None:
        headings = _TRAINER_HEADINGS if trainers else _HEADINGS
        groups: dict[str, list[tuple[str, str]]] = {heading: [] for heading in headings.values()}
        for parameter in self.get_params(ctx):
            name = parameter.name or ""
            row = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if row is None or (name in _TRAINER_GROUPS) != trainers:
                continue
            groups[headings[_TRAINER_GROUPS[name] if trainers else _GROUPS.get(name, "other")]].append(row)
        for heading, rows in groups.items():
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples."""
        _write_examples(formatter, _EXAMPLES)


class ModuleOption(click.Option):
    """``-m``, which ends the options: what follows it is the module's, as for python."""

    def add_to_parser(self, parser: Any, ctx: click.Context) -> None:
        """Register it, to take all words from ``-m`` on for arguments."""
        super().add_to_parser(parser, ctx)

        def end_options(value: str, state: Any) -> None:
            state.largs += ["-m", value, *state.rargs]
            state.rargs = []

        parser._short_opt["-m"].process = end_options


def _write_examples(formatter: click.HelpFormatter, examples: Sequence[str]) -> None:
    with formatter.section("Examples"):
        formatter.write("".join(f"  {example}\n" for example in examples))


def _show(ctx: click.Context, parameter: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        assert isinstance(ctx.command, RecordCommand)
        formatter = ctx.make_formatter()
        ctx.command.format_trainers(ctx, formatter)
        click.echo(formatter.getvalue().rstrip("\n"), color=ctx.color)
        ctx.exit()


def trainers_help_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--help-trainers``."""
    text = f"Show the {len(MODES)} modes and the trainers' options, and exit."
    return click.option("--help-trainers", is_flag=True, is_eager=True, expose_value=False, callback=_show, help=text)(
        function
    )


# What ``dptrace record`` prints when a run is written, measured or interrupted.


class RunReporter(Reporter):
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
            click.echo(for_terminal(text), err=True)

    def recorded(self, info: dict[str, Any], goes_on: bool) -> None:
        """Print what was written, what to note about it, and what to do next."""
        from dptrace.viewers.terminal.summary import memory_sentence

        for note in filter(None, (*info["notes"], ranks_elsewhere_note(info))):
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
        from dptrace.viewers.terminal.summary import profiler_sentence

        if sentence := profiler_sentence(info):
            self.message(sentence)


def data_sentence(info: dict[str, Any]) -> str:
    """Return what resnet18 trained on; empty for other models, which train on one kind of data only."""
    if info["mode"] is None or info["model"] != "resnet18":
        return ""
    data = info["options"]["data"]
    return f"It trained on {data}." if data == SYNTHETIC_IMAGES else f"It trained on CIFAR-10 from {data}."


def summary(info: dict[str, Any]) -> str:
    """Return what was written, and the profiler's overhead."""
    from dptrace.viewers.terminal.summary import profiler_sentence

    ranks = info["ranks"]
    steps = plural(max(rank["recorded_steps"] for rank in ranks), "step")
    return f"Wrote {info['folder']}: {steps} of {plural(len(ranks), 'rank')}. {profiler_sentence(info)}".rstrip()


_FIRST_SPECIAL_STEP = 0xFFFF_FF00
"""Steps of Slurm from this number on are its own: the batch script, the shell of ``salloc``."""


def _as_click_type(reader: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a parser that reports why it refuses a text; click hides the message of a ValueError."""

    def read(text: str) -> Any:
        try:
            return reader(text)
        except ValueError as error:
            raise click.BadParameter(f"{error}.") from None

    return read


def _option(option: Option) -> Decorator:
    """Return an option of the trainers, declared in dptrace.record.options.catalog; the default is the trainers'."""
    names = [f"--{option.name}" + (f"/--no-{option.name}" if option.default is True else ""), option.field]
    if option.name == "out":  # -o and --output on every verb; a trainer's own command line has --out
        names = ["-o", "--output", option.field]
    if option.type is bool:
        kind: dict[str, Any] = {"is_flag": True, "default": None}
    elif option.choices:
        kind = {"type": click.Choice(option.choices)}
    else:
        types: dict[Any, Any] = {int: Whole(most=1 << 31), str: str}
        kind = {"type": types.get(option.type) or _as_click_type(option.type), "metavar": option.metavar}
    return click.option(*names, **kind, help=option.help_text)


@click.command(cls=RecordCommand, context_settings={"allow_interspersed_args": False})
@click.option("--mode", metavar="MODE", shell_complete=complete_mode, help="One of dptrace's trainers.")
@trainers_help_option
@click.option("-m", cls=ModuleOption, hidden=True, expose_value=False)
@click.option("--gpus", type=Whole(1), metavar="N", help="Processes [default: one per GPU; 2 on CPU; 1 by python].")
@group(*map(_option, OPTIONS))
@window_options
@click.option("--force", is_flag=True, help="Overwrite an existing run.")
@click.option("--links", metavar="FILE", help="Copy the measurements of this file of dptrace links into run.json.")
@machine_options
@click.option(
    "--max-restarts",
    type=Whole(0),
    default=0,
    metavar="N",
    help="Restart all ranks when one fails, up to N times, from the last checkpoint.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print only errors, and what the script prints.")
@click.option("-v", "--verbose", is_flag=True, help="Print the torchrun command and the output of a trainer's rank 0.")
@click.argument("script", nargs=-1, type=click.UNPROCESSED, metavar="[SCRIPT [ARGUMENTS]...]")
def command(mode: str | None, gpus: int | None, script: tuple[str, ...], **options: Any) -> None:
    """Record a training run: one Kineto trace per rank, and run.json, in a run folder.

    Name your own script, with everything that belongs to it after it; or write dptrace record before the command line
    that starts it. The script runs unchanged, one process per GPU; its steps are the steps of its optimizer.
    """
    if options["attach"] is not None:
        attach(options["attach"], mode, script)
        return
    if (mode is None) == (not script):
        raise UsageError("Choose either --mode or a script: dptrace record --mode naive, or dptrace record train.py.")
    program = parse_program(script) if script else None
    if program is not None and program.launcher:
        _start_launcher(program, options)
    _check_slurm(script, options)
    _check(mode, program, options)
    folder = _checkpoints(mode, options)
    if options["resume"] and not options["quiet"] and folder is not None and not checkpoint_steps(folder):
        click.echo(f"--resume: {folder} holds no checkpoint; the training starts from step 0.", err=True)
    with catch_signals() as signals:  # before torch is imported, which takes long and may swallow Ctrl-C
        _record(_job(mode, gpus, program, options), options["quiet"], signals)


_OF_RANKS = ("steps", "warmup", "wait", "duration", "out", "force", "light", "shapes", "memory", "modules", "quiet")
"""The options that also ``python -m dptrace.record`` takes."""


def _start_launcher(program: Program, options: dict[str, Any]) -> NoReturn:
    """Become the launcher that the user names, whose ranks record themselves."""
    context = click.get_current_context()
    words: list[str] = []
    for parameter in context.command.params:
        name = str(parameter.name)
        if name == "script" or context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        if name not in _OF_RANKS:
            raise UsageError(
                f"{parameter.opts[0]} is for a script that dptrace starts itself: dptrace record {parameter.opts[0]} … "
                f"{shlex.join(program.words)}. Here, the launcher starts the ranks, and each records itself."
            )
        value = options[name]
        words += parameter.secondary_opts[:1] if value is False else parameter.opts[:1]
        words += [] if isinstance(value, bool) else [str(value)]
    check_program(program)
    RunFolder(_out(None, program, options)).check(options["force"])
    become([*program.launcher, *words, *program.words])


def become(line: list[str]) -> NoReturn:
    """Become another program.

    Raises:
        UsageError: it can't be started.
    """
    try:
        os.execvp(line[0], line)
    except OSError as error:
        raise UsageError(f"{line[0]} cannot be started: {error.strerror or error}.") from None


def _check(mode: str | None, program: Program | None, options: dict[str, Any]) -> None:
    """Refuse before any process is started what would fail in it."""
    if options["quiet"] and options["verbose"]:
        raise UsageError("Choose one of --quiet and --verbose.")
    given = {name: options[name] for name in ("steps", "warmup", "wait") if options[name] is not None}
    chosen = TrainerOptions(**given)
    Schedule.of(chosen.steps, chosen.warmup, chosen.wait)
    if mode is not None:
        trainer(mode)
        model = options["model"] or default_model(mode)
        check_model(mode, model)
        check_training({**options, "model": model})
        if MODES[mode].single_gpu and options["nnodes"] > 1:
            raise UsageError(f"--mode {mode} trains on one GPU; leave --nnodes out, or choose another mode.")
    elif program is not None:
        check_program(program)
    _check_options(mode, options)
    check_windows(mode, options)
    _check_places(mode, program, options)
    _check_machines(options)


def _check_slurm(script: Sequence[str], options: dict[str, Any]) -> None:
    """Refuse several tasks of ``srun`` that would each record a job of its own, into the same folder."""
    tasks, step = (os.environ.get(f"SLURM_STEP_{name}", "") for name in ("NUM_TASKS", "ID"))
    if options["nnodes"] > 1 or "SLURM_PTY_PORT" in os.environ or not (tasks.isdecimal() and step.isdecimal()):
        return
    if int(tasks) < 2 or int(step) >= _FIRST_SPECIAL_STEP:
        return
    raise UsageError(
        f"srun started {tasks} tasks, and each would record a job of its own. With a task per rank, let each record "
        f"itself: srun … python -m dptrace.record {shlex.join(script) or 'train.py'}. With a task per machine, add "
        "--nnodes, --node-rank and --rdzv-endpoint, or start torchrun: srun … torchrun … -m dptrace.record …"
    )


def _check_machines(options: dict[str, Any]) -> None:
    check_machines(options)
    if options["nnodes"] > 1 and options["max_restarts"]:
        raise UsageError(
            "--max-restarts is for one machine: else torchrun restarts the ranks of one machine while the others wait. "
            "Start the command again on all of them, with --resume."
        )
    if options["rdzv_endpoint"] is not None:
        from dptrace.bench.links import check_address

        check_address(options["rdzv_endpoint"])


def _check_options(mode: str | None, options: dict[str, Any]) -> None:
    """Refuse options that do not apply to what is recorded, instead of ignoring them."""
    for option in OPTIONS:
        if options[option.field] is None:
            continue
        if mode is None and option.field not in SCRIPT_OPTIONS:
            raise UsageError(f"--{option.name} is for --mode; put an option of the script after its name.")
        if mode is not None and option.modes and mode not in option.modes:
            modes = ", ".join(option.modes)
            raise UsageError(f"--{option.name} does not apply to --mode {mode}; it is for {modes}.")


def _check_places(mode: str | None, program: Program | None, options: dict[str, Any]) -> None:
    parameters = options["save_parameters"]
    if parameters and not Path(parameters).absolute().parent.is_dir():
        raise UsageError(f"--save-parameters {parameters}: its folder does not exist; create it first.")
    RunFolder(_out(mode, program, options)).check(options["force"])
    folder = _checkpoints(mode, options)
    if folder is not None and options["checkpoint_every"] and not options["node_rank"]:
        check_writable(folder)


def _checkpoints(mode: str | None, options: dict[str, Any]) -> Path | None:
    """Return the folder of checkpoints to write or resume from; None where neither is requested."""
    if mode is None or not (options["checkpoint_every"] or options["resume"]):
        return None
    return checkpoint_folder(mode, options["checkpoints"])


def _out(mode: str | None, program: Program | None, options: dict[str, Any]) -> Path:
    return Path(options["out"] or f"runs/{mode if program is None else program.name}")


def _processes(mode: str | None, gpus: int | None, program: Program | None, quiet: bool) -> int:
    """Return the number of processes; print it when they do not run on GPUs."""
    from dptrace.record.launch.launcher import processes_here

    count, local_gpus = processes_here(gpus)
    said = []
    if program is not None and program.is_python and gpus is None:
        count = 1  # as the command line without dptrace
        if local_gpus > 1:
            said.append(f"Recording 1 process, as python starts one; --gpus N records N (here {local_gpus}).")
    if mode is not None and MODES[mode].single_gpu:
        count = 1
        if (gpus or 1) > 1:
            said.append(f"Mode {mode} trains on one GPU: recording 1 process instead of {gpus}.")
    if not local_gpus:
        how = "with gloo on CPU." if mode else "on CPU." if count == 1 else "on CPU; the script must use gloo."
        said.append(f"No GPU found: recording {plural(count, 'process', 'processes')} {how}")
    for text in said if not quiet else ():
        click.echo(text, err=True)
    return count


def _job(mode: str | None, gpus: int | None, program: Program | None, options: dict[str, Any]) -> Launch:
    from dptrace.bench.links import links_summary, read_links
    from dptrace.record.launch.torchrun import Launch

    processes = _processes(mode, gpus, program, options["quiet"])
    if program is not None and program.target == STANDARD_INPUT and processes > 1:
        raise UsageError("A script on standard input is one process. Save it to a file to record several.")
    if mode is not None:
        _check_ranks(mode, options, processes)
    if program is None:
        assert mode is not None
        program = Program(str(trainer(mode)), arguments=_trainer_arguments(options))
    return Launch(
        out=_out(mode, None if mode else program, options),
        force=options["force"],
        script=Path(program.target),
        arguments=program.arguments,
        processes=processes,
        mode=mode,
        **window_settings(options),
        nnodes=options["nnodes"],
        node_rank=options["node_rank"] or 0,
        endpoint=options["rdzv_endpoint"],
        max_restarts=options["max_restarts"],
        checkpoints=_checkpoints(mode, options),
        show_output=options["verbose"] or mode is None,
        verbose=options["verbose"],
        command=["dptrace", *sys.argv[1:]],
        links=links_summary(read_links(Path(options["links"]))) if options["links"] else None,
        is_module=program.is_module,
        python_options=program.python_options,
    )


def _check_ranks(mode: str, options: dict[str, Any], processes: int) -> None:
    model = options["model"] or default_model(mode)
    defaults = {option.field: option.default for option in OPTIONS}
    defaults |= {"model": model, "batch_size": MODELS[model].batch_size}
    given = {name: value for name, value in options.items() if value is not None}
    check_ranks(mode, defaults | given, processes * options["nnodes"])


def _trainer_arguments(options: dict[str, Any]) -> tuple[str, ...]:
    flags = {True: "--{}", False: "--no-{}"}
    given = [(option, options[option.field]) for option in OPTIONS if option.name != "out"]
    return tuple(
        flags[value].format(option.name) if option.type is bool else f"--{option.name}={value}"
        for option, value in given
        if value is not None
    )


def _record(job: Launch, quiet: bool, signals: Signals) -> None:
    from dptrace.record.launch.launcher import launch
    from dptrace.record.processes import Interrupted

    if job.mode is not None and job.max_restarts and job.checkpoints is None and not quiet:
        remedy = "Add --checkpoint-every N to resume instead."
        click.echo(f"No checkpoints: after a failure, training restarts from step 0. {remedy}", err=True)
    try:
        signals.check()
        # A script prints its own progress, and --verbose the trainer's output.
        shown = NORMAL if job.mode is not None and not (quiet or job.verbose) else QUIET
        with progress("Training", shown) as show:
            runs = launch(job, RunReporter(job, quiet, show))
    except Interrupted as stopped:
        checkpoints = kept_checkpoints_message(job.checkpoints)
        click.echo(f"Interrupted: all ranks are stopped{stopped.kept}\n{checkpoints}".rstrip(), err=True)
        sys.exit(stopped.exit_code)
    if not runs and job.trigger is not None and not job.node_rank:
        click.echo("Nothing was recorded: no recording was requested while the training ran.", err=True)
    elif not runs and job.node_rank and not quiet:
        click.echo(f"This machine's ranks are done; machine 0 writes {job.out}.", err=True)
