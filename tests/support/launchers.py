"""Launchers that need not be installed: a stand-in of accelerate, and ranks as ``srun`` and ``mpirun`` start them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.recordings import environment

__all__ = ["fake_accelerate", "launched"]

_ACCELERATE = """
import argparse, os, sys

def launch_command_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--num_processes", "--num-processes")
    parser.add_argument("--config_file")
    parser.add_argument("-m", "--module", action="store_true")
    parser.add_argument("--no_python", "--no-python", action="store_true")
    parser.add_argument("training_script")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return parser

if __name__ == "__main__":
    given = launch_command_parser().parse_args()
    os.environ["ACCELERATE_STARTED_IT"] = "yes"
    module = ["-m"] if given.module else []
    from torch.distributed.run import main
    main(["--standalone", "--nproc-per-node", given.num_processes, *module, given.training_script,
          *given.training_script_args])
"""


def fake_accelerate(folder: Path) -> Path:
    """Write a package with accelerate's parser, which starts torchrun, and a command; return the folder of both."""
    place = folder / "with accelerate"
    commands = place / "accelerate" / "commands"
    commands.mkdir(parents=True)
    for path in (commands.parent, commands):
        (path / "__init__.py").write_text("")
    (commands / "launch.py").write_text(_ACCELERATE)
    (place / "bin").mkdir()
    command = place / "bin" / "accelerate"
    command.write_text(f'#!/bin/sh\nshift\nexec "{sys.executable}" -m accelerate.commands.launch "$@"\n')
    command.chmod(0o755)
    return place


def launched(
    command: Sequence[str], ranks: Sequence[Mapping[str, str]], cwd: Path
) -> list[subprocess.CompletedProcess[str]]:
    """Run a command of Python in a process for each rank, with its variables, and return how each ended."""
    tasks = [
        subprocess.Popen(
            [sys.executable, *command],
            cwd=cwd,
            env=environment() | dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for variables in ranks
    ]
    ends = [task.communicate(timeout=300) for task in tasks]
    return [
        subprocess.CompletedProcess(task.args, task.returncode, *end) for task, end in zip(tasks, ends, strict=True)
    ]
