"""What to record, from the words after dptrace's own options.

``train.py``, ``-m pkg.train``, ``python train.py``; or the command line of a launcher, whose ranks record themselves.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from argparse import REMAINDER, ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from dptrace.core.launchers import RANK_VARIABLES
from dptrace.errors import UsageError

STANDARD_INPUT = "-"
"""In place of a script: one on standard input."""
_PYTHON = re.compile(r"(?:python|pypy)(?P<version>\d(?:\.\d+)?)?t?(?:\.exe)?")
_EXAMPLES = {"m": "pkg.train", "W": "ignore", "X": "dev"}
_LAUNCHERS = {
    **dict.fromkeys(("accelerate", "accelerate-launch"), "-m"),
    "deepspeed": "--module",
    **dict.fromkeys(("srun", "mpirun", "mpiexec", "horovodrun"), ""),
}
"""Launchers besides torchrun, and the option with which each starts a module; none where it starts any command."""
_LAUNCHER_MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
"""Those that ``python -m`` starts."""
_LOCAL_RANK = ("--local_rank=", "--local-rank=")
"""What deepspeed and torch.distributed.launch put before all other words, for the script."""
_OUTER = {
    *("uv", "poetry", "pipenv", "pdm", "conda", "mamba", "micromamba"),
    *("nohup", "env", "time", "nice", "taskset", "numactl", "stdbuf", "sudo", "nsys", "ncu"),
}
"""Commands that start another command: dptrace can be that one."""


def is_first_rank() -> bool:
    """Return whether this process is rank 0 of whatever launcher started it, or has no launcher."""
    return "0" == next((os.environ[name] for name in RANK_VARIABLES if name in os.environ), "0")


@dataclass(frozen=True, slots=True)
class Program:
    """The program to record, and how its command line asks to start it."""

    target: str
    """A path, the dotted name of a module, or ``-`` for standard input."""
    is_module: bool = False
    arguments: tuple[str, ...] = ()
    python_options: tuple[str, ...] = ()
    """Options of Python, such as ``-O``."""
    is_python: bool = False
    """Whether it is one process unless the user says otherwise: its words begin with ``python``, or it is ``-``."""
    launcher: tuple[str, ...] = ()
    """A launcher with its options, which starts the ranks, up to where ``dptrace.record`` takes its options."""

    @property
    def name(self) -> str:
        """The name of its run."""
        if self.target == STANDARD_INPUT:
            return "stdin"
        if not self.is_module:
            return Path(self.target).stem or Path(self.target).resolve().name
        return self.target.removesuffix(".__main__").rpartition(".")[2]

    @property
    def words(self) -> tuple[str, ...]:
        """The program as the words after ``python``."""
        return (*(["-m"] if self.is_module else []), self.target, *self.arguments)


def parse_rank(parser: ArgumentParser) -> tuple[Namespace, Program, list[str]]:
    """Read the command line of a rank, such as ``python -m dptrace.record [OPTIONS] train.py …``.

    Args:
        parser: knows the options before the script.

    Returns:
        The options, the program, and its arguments, with what a launcher puts before all other words.
    """
    parser.add_argument("-m", dest="is_module", action="store_true", help="the script is the name of a module")
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("arguments", nargs=REMAINDER, metavar="…", help="the script's own arguments")
    ranks = [word for word in sys.argv[1:2] if word.startswith(_LOCAL_RANK)]
    given = parser.parse_args(sys.argv[1 + len(ranks) :])
    return given, Program(given.script, given.is_module), [*ranks, *given.arguments]


def parse_program(words: Sequence[str]) -> Program:
    """Read the words that follow dptrace's options; there is at least one.

    Raises:
        UsageError: they name nothing that dptrace can start.
    """
    first, rest = words[0], words[1:]
    name = os.path.basename(first)
    if name == "torchrun":
        return _from_launcher([sys.executable, "-m", "torch.distributed.run", *rest], 3, "-m")
    if name in _LAUNCHERS and not Path(name).is_file():
        return _from_launcher(words, 1, _LAUNCHERS[name])
    if _PYTHON.fullmatch(name) or first.startswith("-m"):
        program = _parse_python("-m", words) if first.startswith("-m") else _parse_python(first, rest)
        if program.is_module and program.target in _LAUNCHER_MODULES:  # the ranks get none of Python's options
            return _from_launcher([sys.executable, "-m", program.target, *program.arguments], 3, "-m")
        return program
    if name in _OUTER and not Path(first).is_file():
        raise UsageError(f"Put {name} before dptrace, not after it: {name} … dptrace record train.py …")
    return Program(first, arguments=tuple(rest), is_python=first == STANDARD_INPUT)


def _from_launcher(words: Sequence[str], start: int, flag: str) -> Program:
    """Find the script in a launcher's command line, to let each rank record itself.

    Args:
        start: where the launcher's options begin.
        flag: its option for a module; empty if it starts any command.
    """
    has_python = not flag
    for number, word in enumerate(words[start:], start):
        is_module = word in ("-m", "--module") and bool(flag)
        if _PYTHON.fullmatch(os.path.basename(word)):
            flag = "-m"  # what it starts is Python, whose option this is
        elif is_module or word.endswith(".py"):
            module = [flag] if flag else ["python", "-m"]
            program = list(words[number + is_module :])
            if not program:
                break
            launcher = (*words[:number], *module, "dptrace.record")
            return Program(program[0], is_module, tuple(program[1:]), launcher=launcher)
    how = "python -m" if has_python else flag
    raise UsageError(
        f"{words[0]}: no Python script is in its command line. Put {how} dptrace.record before what each rank runs, "
        f"and leave dptrace record out: {words[0]} … {how} dptrace.record train.py …"
    )


def _parse_python(interpreter: str, words: Sequence[str]) -> Program:
    """Read what follows ``python``; *words* starts with ``-m`` where there is none."""
    if interpreter != "-m":
        _check_interpreter(interpreter)
    options: list[str] = []
    left = list(words)
    while left and left[0].startswith("-") and left[0] != "-":
        word = left.pop(0)
        # One word may hold several options, of which only the last one has a value: -um pkg, -Werror.
        flags, valued, value = re.fullmatch(r"-([^mWXc]*)([mWXc]?)(.*)", word, re.DOTALL).groups()  # type: ignore[union-attr]
        if word.startswith("--"):
            options.append(word)
            continue
        if valued == "c" or "i" in flags:
            raise UsageError(f"python {word}: write the code to a file, and record that, without -c or -i.")
        if valued and not value:
            if not left:
                raise UsageError(f"-{valued} needs a value, such as -{valued} {_EXAMPLES[valued]}.")
            value = left.pop(0)
        options += [f"-{flags}"] if flags else []
        if valued == "m":
            return Program(value, True, tuple(left), tuple(options), interpreter != "-m")
        options += [f"-{valued}", value] if valued else []
    if not left:
        raise UsageError(f"Name the script after {os.path.basename(interpreter)}, or - for one on standard input.")
    return Program(left[0], False, tuple(left[1:]), tuple(options), True)


def _check_interpreter(interpreter: str) -> None:
    """Refuse another Python than that of dptrace, which starts the ranks."""
    match = _PYTHON.fullmatch(os.path.basename(interpreter))
    assert match is not None
    version = match["version"]
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    other = version is not None and version not in (own, own[0])
    if os.path.dirname(interpreter):
        # Not resolved: the Python of a virtual environment is a link to that outside it.
        here = Path(os.path.abspath(interpreter)).parent
        other = here != Path(sys.executable).parent or not Path(interpreter).exists()
    if other:
        raise UsageError(
            f"{interpreter} is not the Python that runs dptrace, {sys.executable}. Install dptrace there and run "
            f"{interpreter} -m dptrace record …, or leave {interpreter} out."
        )


def check_program(program: Program) -> None:
    """Check that the script or the module is there, without importing anything.

    Raises:
        UsageError: it is not.
    """
    if program.is_module:
        _check_module(program.target)
        return
    path = Path(program.target)
    if program.target == STANDARD_INPUT and not program.launcher:
        return
    if path.is_file() or (path / "__main__.py").is_file():
        return
    if path.is_dir():
        raise UsageError(f"{path} is a folder without a __main__.py: name a script in it.")
    hint = ""
    if os.sep not in program.target and shutil.which(program.target):
        hint = f" {program.target} is a command: name the Python script that it runs, or -m and its module."
    raise UsageError(f"{program.target}: script not found.{hint}")


def _check_module(name: str) -> None:
    parts = name.split(".")
    here = os.getcwd()
    sys.path.insert(0, here)  # where python -m looks first
    try:
        spec = importlib.util.find_spec(parts[0])
    except (ImportError, ValueError):
        spec = None
    finally:
        sys.path.remove(here)
    found = 1
    # By the last part of each name: importlib would import the packages above.
    while spec is not None and found < len(parts):
        inside = spec.submodule_search_locations
        spec = None if inside is None else PathFinder.find_spec(parts[found], list(inside))
        found += 1
    if spec is None:
        raise UsageError(
            f"-m {name}: there is no module {'.'.join(parts[:found])} here or among the installed packages. Give a "
            "module's dotted name, without .py, from the folder that contains its package."
        )
    inside = spec.submodule_search_locations
    if inside is not None and PathFinder.find_spec("__main__", list(inside)) is None:
        raise UsageError(f"-m {name} is a package without a __main__ module: name one of its modules.")
