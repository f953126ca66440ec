"""``dptrace watch``: every step of a whole run, light; or what a watch in a folder shows."""

from __future__ import annotations

import os
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.core import ParameterSource

from dptrace.commands.record import ModuleOption, become
from dptrace.commands.shared.numbers import Whole
from dptrace.commands.shared.options import check_machines, json_option, machine_options
from dptrace.commands.shared.output import emit, fitted, json_text, quoted_paths
from dptrace.core.units import plural
from dptrace.errors import RecordingError, UsageError
from dptrace.record.launch.monitor import Reporter
from dptrace.record.options.command_line import STANDARD_INPUT, Program, check_program, parse_program
from dptrace.record.processes import catch_signals

if TYPE_CHECKING:
    from dptrace.record.launch.torchrun import Launch
    from dptrace.watch.follow import Follower
    from dptrace.watch.trigger import Trigger

_SCREEN_S = 0.5
"""Between two looks at the files while a screen is drawn, and its drawings."""
_OF_FOLDERS = ("script", "capture", "as_json", "total")
"""Parameters that mean something for the folder of a watch."""


class _Command(click.Command):
    """A command whose options may also follow the folder of a watch; what follows a script is the script's."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the words."""
        ctx.allow_interspersed_args = bool(args) and _is_folder(args[0])
        return super().parse_args(ctx, args)


def _is_folder(word: str) -> bool:
    """Return whether a word is a folder to look at, not a program."""
    return Path(word).is_dir() and not (Path(word) / "__main__.py").exists()


@click.command(cls=_Command)
@click.option("-m", cls=ModuleOption, hidden=True, expose_value=False)
@click.option("--gpus", type=Whole(1), metavar="N", help="Processes [default: one per GPU; 2 on CPU; 1 by python].")
@click.option("-o", "--output", "out", metavar="FOLDER", help="Folder of the watch [default: runs/SCRIPT-watch].")
@click.option("--force", is_flag=True, help="Replace an earlier watch.")
@click.option("--every", type=Whole(0), default=0, metavar="N", help="Steps between lines [default: about 10 s].")
@click.option("--total", type=Whole(0), default=0, metavar="N", help="Steps of the training, for the time left.")
@click.option("--captures", type=Whole(0), default=2, metavar="M", help="Captures by itself, at most [default: 2].")
@click.option("--capture-steps", type=Whole(1), default=5, metavar="N", help="Steps of each [default: 5].")
@click.option("--export", default="", metavar="WHERE", help="prometheus, prometheus:HOST:PORT or otlp.")
@click.option("--capture", type=Whole(1), metavar="N", help="Ask the job that FOLDER watches to record N steps now.")
@json_option
@machine_options
@click.option("-q", "--quiet", is_flag=True, help="Print no progress and no verdict.")
@click.argument("script", nargs=-1, required=True, type=click.UNPROCESSED, metavar="SCRIPT [ARGUMENTS]... | FOLDER")
def command(script: tuple[str, ...], **options: Any) -> None:
    """Watch each step of a training on all its ranks: who is late, in which stage, by how much and since when.

    Name your own script, with everything that belongs to it after it; or write dptrace watch before the command line
    that starts it. The script runs unchanged; the profiler records a few steps only when something happens. With the
    FOLDER of a watch, show what is known of that run, also while it goes on.

    \b
    Examples:
      dptrace watch --gpus 4 -o runs/x train.py --epochs 10
      dptrace watch torchrun --nproc-per-node 4 train.py
      dptrace watch runs/x
      dptrace watch runs/x --capture 5
    """
    if len(script) == 1 and _is_folder(script[0]):
        _look(Path(script[0]), options)
        return
    _refuse_no_script(script)
    for name in ("capture", "as_json"):
        if options[name]:
            raise UsageError(f"--{name.replace('as_', '')} is for the folder of a watch, not for a script.")
    program = parse_program(script)
    folder = Path(os.path.abspath(options["out"] or f"runs/{program.name}-watch"))
    if program.launcher:
        _start_launcher(program, folder, options)
    check_program(program)
    check_machines(options)
    _launch(program, folder, options)


def _refuse_no_script(script: Sequence[str]) -> None:
    """Refuse what is rather meant to be the folder of a watch."""
    if _is_folder(script[0]) and len(script) > 1:
        others = all(map(_is_folder, script))
        advice = f"Compare two: dptrace diff {quoted_paths(script[:2])}" if others else "Name it alone"
        raise UsageError(f"{script[0]} is a folder; one watch is shown at a time. {advice}.")
    (word, *more), known = script, ("-", "--")
    if not (more or word in known or Path(word).exists() or Path(word).suffix == ".py" or shutil.which(word)):
        raise UsageError(f"{word}: no such script, nor folder of a watch.")


def _words(folder: Path, options: dict[str, Any]) -> list[str]:
    """Return the options of ``python -m dptrace.watch``."""
    words = ["-o", str(folder), "--every", str(options["every"]), "--captures", str(options["captures"])]
    words += ["--capture-steps", str(options["capture_steps"])]
    words += ["--export", options["export"]] if options["export"] else []
    return words + ["--force"] * options["force"] + ["--quiet"] * options["quiet"]


def _start_launcher(program: Program, folder: Path, options: dict[str, Any]) -> NoReturn:
    """Become the launcher that the user names, whose ranks watch themselves."""
    for name in ("gpus", "nnodes", "node_rank", "rdzv_endpoint"):
        if options[name] not in (None, 1):
            raise UsageError(f"--{name.replace('_', '-')} is for a script that dptrace starts itself.")
    check_program(program)
    become([*program.launcher[:-1], "dptrace.watch", *_words(folder, options), *program.words])


def _launch(program: Program, folder: Path, options: dict[str, Any]) -> None:
    from dptrace.record.launch.launcher import processes_here
    from dptrace.record.launch.torchrun import Launch
    from dptrace.watch.folder import check_folder

    count, gpus = processes_here(options["gpus"])
    if program.is_python and options["gpus"] is None:
        count = 1  # as the command line without dptrace
    if program.target == STANDARD_INPUT and count > 1:
        raise UsageError("A script on standard input is one process. Save it to a file to watch several.")
    node_rank = options["node_rank"] or 0
    if not node_rank:
        check_folder(folder, options["force"])
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{options['out'] or folder} cannot be created: {error.strerror or error}.") from None
    if not (gpus or options["quiet"]):
        click.echo(f"No GPU found: watching {plural(count, 'process', 'processes')} on CPU.", err=True)
    reader = Reader(folder, options)
    job = Launch(
        show_output=not reader.is_live,
        out=folder / "job",
        force=False,
        script=Path(program.target),
        arguments=program.arguments,
        processes=count,
        mode=None,
        trigger="SIGUSR2",
        nnodes=options["nnodes"],
        node_rank=node_rank,
        endpoint=options["rdzv_endpoint"],
        command=["dptrace", *sys.argv[1:]],
        is_module=program.is_module,
        python_options=program.python_options,
        runner=("dptrace.watch", "--launched", *_words(folder, options | {"force": False})),
    )
    with catch_signals():
        if not node_rank:
            reader.start()
        _run(job, reader, folder)
        if not (node_rank or folder.exists() or options["quiet"]):
            click.echo(_removed(folder), err=True)


def _run(job: Launch, reader: Reader, folder: Path) -> None:
    """Run the job; let the reader say how it was, however it ends."""
    from dptrace.record.launch.launcher import launch
    from dptrace.record.processes import Interrupted

    try:
        launch(job, Silent())
    except Interrupted as stopped:
        sys.exit(stopped.exit_code)
    except RecordingError as error:
        if folder.exists():
            raise
        text = f"The training ended with exit code {error.exit_code}. {_removed(folder)}"
        raise RecordingError(text, error.exit_code) from None
    finally:
        reader.finish()


def _removed(folder: Path) -> str:
    return f"There is no verdict: {folder} was removed during the run."


class Silent(Reporter):
    """A reporter of a launch that tells errors only: the watch tells the rest."""

    def error(self, text: str) -> None:
        """Say that the launcher could not do something."""
        click.echo(text, err=True)


class Reader(threading.Thread):
    """Reads the ranks' files while dptrace's launcher waits for them."""

    def __init__(self, folder: Path, options: dict[str, Any]) -> None:
        super().__init__(name="dptrace_watch", daemon=True)
        self._folder, self._options, self._goes_on = folder, options, True
        self._listeners = []
        if options["export"] and not options["node_rank"]:
            from dptrace.watch.export import exporter

            self._listeners.append(exporter(options["export"]))
        self.is_live = sys.stderr.isatty() and sys.stdout.isatty() and not (options["quiet"] or options["every"])
        """Whether a screen shows the job; rank 0's output then goes through it."""

    def run(self) -> None:
        """Follow the job, and say how it was."""
        from dptrace.watch.follow import Follower, follow
        from dptrace.watch.trigger import Trigger

        options = self._options
        trigger = Trigger(self._folder, options["captures"], options["capture_steps"])
        trigger.signalled = self._folder / ".job.recording"
        follower = Follower(self._folder, trigger)
        follower.listeners += self._listeners
        if self.is_live:
            self._show(follower, trigger)
        else:
            follow(follower, lambda: self._goes_on, options["every"], self._tell, not options["quiet"])
        text = follower.finish()
        if not options["quiet"]:
            self._tell(fitted("\n".join(text), indent=8))

    def _show(self, follower: Follower, trigger: Trigger) -> None:
        """Draw the screen until the job ends."""
        from dptrace.record.messages import rank_log
        from dptrace.watch.screen import LiveScreen

        output = rank_log(self._folder / ".job.recording", 0)
        with LiveScreen(follower, output, self._options["total"]) as live:
            trigger.say = live.say
            while self._goes_on:
                time.sleep(_SCREEN_S)
                follower.poll()
                live.update()

    def _tell(self, text: str) -> None:
        if text:
            click.echo(text, err=True)

    def finish(self) -> None:
        """Let it read the rest and say how the run was."""
        self._goes_on = False
        if self.ident is not None:
            self.join(3600)  # captures are analyzed meanwhile


def _look(folder: Path, options: dict[str, Any]) -> None:
    """Show what is known of a watch; ask it for a capture."""
    from dptrace.watch.follow import opened
    from dptrace.watch.records import rank_path
    from dptrace.watch.trigger import request

    context = click.get_current_context()
    for option in context.command.params:
        given = context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE
        if given and option.name not in _OF_FOLDERS:
            raise UsageError(f"{option.opts[-1]} is for a script, not for the folder of a watch.")
    follower = opened(folder)
    running = not follower.has_ended()
    if options["capture"]:
        if not running:
            raise UsageError(f"{folder}: the job has ended; nothing can be recorded any more.")
        request(folder, options["capture"])
        click.echo(f"Asked for {options['capture']} steps; they will be in {folder}/capture1, capture2 …", err=True)
        return
    content = follower.summary()
    if running and sys.stdout.isatty() and sys.stderr.isatty() and not options["as_json"]:
        from dptrace.watch.screen import LiveScreen

        with LiveScreen(follower, total=options["total"]) as live:
            while not follower.has_ended():
                live.update()
                time.sleep(_SCREEN_S)
                follower.poll()
        content = follower.summary()
    if options["as_json"]:
        emit(json_text(content), None)
        return
    from dptrace.watch.verdict import lines

    click.echo(fitted("\n".join(lines(content)), sys.stdout, 8))
    if running:
        age = time.time() - max(rank_path(folder, rank, "steps").stat().st_mtime for rank in follower.merger.files)
        click.echo(f"The job goes on; its last step ended {age:.0f} s ago.", err=True)
