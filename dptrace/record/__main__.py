"""Record a script in the ranks that any launcher starts: ``torchrun … -m dptrace.record [OPTIONS] train.py …``.

No process of dptrace stands above the ranks: they agree through their own key-value store, and rank 0 completes the
run. So what a launcher of dptrace does from outside is not there: ending the training, recording again, time limits.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from dptrace.errors import DptraceError
from dptrace.record.messages import LauncherSettings, restart_count
from dptrace.record.options.catalog import Schedule
from dptrace.record.options.command_line import check_program, is_first_rank, parse_rank
from dptrace.record.run_folder import RunFolder


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="LAUNCHER … -m dptrace.record",
        description="Record a script in each rank; the launcher is torchrun, accelerate launch, srun, mpirun …",
        allow_abbrev=False,
    )
    parser.add_argument("--steps", type=int, metavar="N", help="steps to record [default: 10]")
    parser.add_argument("--duration", type=float, metavar="S", help="record about S seconds instead of --steps")
    parser.add_argument("--warmup", type=int, default=3, metavar="N", help="steps before them [default: 3]")
    parser.add_argument("--wait", type=int, default=0, metavar="N", help="steps before the warm-up [default: 0]")
    parser.add_argument("-o", "--output", metavar="RUN", help="folder of the run [default: runs/SCRIPT]")
    parser.add_argument("--force", action="store_true", help="replace an existing run")
    parser.add_argument("--light", action="store_true", help="record kernels and communication only")
    shapes = "leave the shapes of operators out on GPUs, for less overhead"
    parser.add_argument("--no-shapes", dest="shapes", action="store_false", help=shapes)
    parser.add_argument("--shapes", action="store_true", help=argparse.SUPPRESS)  # the default
    parser.add_argument("--memory", action="store_true", help="also record each allocation and free")
    parser.add_argument("--modules", action="store_true", help="mark each module's forward")
    parser.add_argument("-q", "--quiet", action="store_true", help="print only errors, and what the script prints")
    return parser


def main() -> None:
    """Read the options before the script, and run it as one rank."""
    parser = _parser()
    given, program, arguments = parse_rank(parser)
    if given.light and given.modules:
        parser.error("--light leaves out the operators that --modules needs; choose one")
    if given.duration is not None and (given.steps is not None or not 0 < given.duration < float("inf")):
        parser.error("--duration is a number of seconds above 0, instead of --steps")
    steps = 10 if given.steps is None else given.steps
    out = Path(given.output or f"runs/{program.name}")
    records = True
    try:
        Schedule.of(steps, given.warmup, given.wait)
        check_program(program)
        run = RunFolder(out)
        # A launcher has restarted the ranks after the run was complete: the training goes on.
        records = not (restart_count() and (run.path / "run.json").exists())
        if records:
            run.check(given.force)
    except DptraceError as error:
        parser.exit(error.exit_code, f"Error: {error}\n" if is_first_rank() else "")  # once
    sys.argv = [program.target, *arguments]
    if not records:
        from dptrace.record.script.execute import execute

        execute(program.target, program.is_module)
        return
    flags = {name: getattr(given, name) for name in ("light", "memory", "modules", "shapes", "force", "quiet")}
    LauncherSettings(
        display_path=os.path.abspath(out),  # a script may change its working directory
        steps=steps,
        warmup=given.warmup,
        wait=given.wait,
        duration_s=given.duration,
        script=True,
        **flags,
    ).set_own()
    from dptrace.record.script.runner import run_program

    run_program(program.target, program.is_module)


if __name__ == "__main__":
    main()
