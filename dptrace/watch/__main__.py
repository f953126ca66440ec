"""Watch a script in the ranks that any launcher starts: ``torchrun … -m dptrace.watch [OPTIONS] train.py …``."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from dptrace.errors import DptraceError
from dptrace.record.messages import restart_count
from dptrace.record.options.command_line import check_program, is_first_rank, parse_rank


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="LAUNCHER … -m dptrace.watch",
        description="Watch each step of a script in each rank; the launcher is torchrun, accelerate launch, srun …",
        allow_abbrev=False,
    )
    parser.add_argument("-o", "--output", metavar="FOLDER", help="folder of the watch [default: runs/SCRIPT-watch]")
    parser.add_argument("--force", action="store_true", help="replace an earlier watch")
    parser.add_argument("--every", type=int, default=0, metavar="N", help="steps between lines [default: about 10 s]")
    parser.add_argument("--captures", type=int, default=2, metavar="M", help="at most M by itself [default: 2]")
    parser.add_argument("--capture-steps", type=int, default=5, metavar="N", help="steps of each [default: 5]")
    parser.add_argument("--export", default="", metavar="WHERE", help="prometheus[:HOST:PORT] or otlp")
    parser.add_argument("-q", "--quiet", action="store_true", help="print no progress and no verdict")
    parser.add_argument("--launched", action="store_true", help=argparse.SUPPRESS)  # by dptrace watch, which reads
    return parser


def main() -> None:
    """Read the options before the script, and run it as one rank."""
    parser = _parser()
    given, program, arguments = parse_rank(parser)
    folder = Path(os.path.abspath(given.output or f"runs/{program.name}-watch"))
    is_first = is_first_rank()
    from dptrace.record.script.runner import run_program
    from dptrace.watch.folder import check_folder
    from dptrace.watch.session import Settings, prepare_rank

    try:
        if min(given.every, given.captures, given.capture_steps - 1) < 0:
            parser.error("--every and --captures are 0 or more, --capture-steps is 1 or more")
        check_program(program)
        if is_first and not given.launched and not restart_count():
            check_folder(folder, given.force)
    except DptraceError as error:
        parser.exit(error.exit_code, f"Error: {error}\n" if is_first else "")  # once
    Settings(
        str(folder), given.every, not given.launched, given.quiet, given.captures, given.capture_steps, given.export
    ).set()
    sys.argv = [program.target, *arguments]
    run_program(program.target, program.is_module, prepare_rank)


if __name__ == "__main__":
    main()
