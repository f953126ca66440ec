"""What to record, from the words after dptrace's own options.

``train.py``, ``-m pkg.train``, ``python train.py``, ``torchrun train.py``, and the like.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from dptrace.errors import UsageError
from dptrace.record.options.accelerate_command import parse_accelerate
from dptrace.record.options.torchrun_command import Torchrun, parse_torchrun

__all__ = ["Program", "check_program", "merge_settings", "parse_program", "process_count"]

_PYTHON = re.compile(r"(?:python|pypy)(?P<version>\d(?:\.\d+)?)?t?(?:\.exe)?")
_PYTHON_FLAGS = {
    "u": ("PYTHONUNBUFFERED", "1"),
    "B": ("PYTHONDONTWRITEBYTECODE", "1"),
    "O": ("PYTHONOPTIMIZE", "1"),
    "s": ("PYTHONNOUSERSITE", "1"),
}
_PYTHON_X = {"dev": "PYTHONDEVMODE", "faulthandler": "PYTHONFAULTHANDLER", "utf8": "PYTHONUTF8"}
_TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_ACCELERATE_MODULES = ("accelerate.commands.launch", "accelerate.commands.accelerate_cli")
_OUTER = {
    *("uv", "poetry", "pipenv", "pdm", "conda", "mamba", "micromamba"),
    *("srun", "mpirun", "mpiexec", "horovodrun"),
    *("nohup", "env", "time", "nice", "taskset", "numactl", "stdbuf", "sudo", "nsys", "ncu"),
}
"""Commands that start another command: dptrace can be that one."""


@dataclass(frozen=True, slots=True)
class Program:
    """The program to record, and how its command line asks to start it."""

    target: str
    """A path, or the dotted name of a module."""
    is_module: bool = False
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    """Variables that stand for the options of Python and of accelerate."""
    processes: str | None = None
    """Processes per machine: a number, ``gpu``, ``auto`` or ``cpu``; None if the command line does not say."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Options of ``dptrace record`` that it sets, by attribute name."""
    agent_options: tuple[str, ...] = ()
    """Options for torchrun itself."""
    notes: tuple[str, ...] = ()
    """Sentences for the user."""

    @property
    def name(self) -> str:
        """The name of its run."""
        if not self.is_module:
            return Path(self.target).stem or Path(self.target).resolve().name
        return self.target.removesuffix(".__main__").rpartition(".")[2]


def parse_program(words: Sequence[str]) -> Program:
    """Read the words that follow dptrace's options; there is at least one.

    Raises:
        UsageError: they name nothing that dptrace can start, or contain an option that would have to be ignored.
    """
    first, rest = words[0], words[1:]
    name = os.path.basename(first)
    if first.startswith("-m"):
        return _parse_python("-m", words)
    if _PYTHON.fullmatch(name):
        return _parse_python(first, rest)
    if name == "torchrun":
        return _from_torchrun(parse_torchrun(name, rest))
    if name == "accelerate-launch" or (name == "accelerate" and rest[:1] == ["launch"]):
        return _from_accelerate(rest if name == "accelerate-launch" else rest[1:])
    if name == "deepspeed":
        raise UsageError(
            "dptrace does not start scripts with deepspeed. Record the script itself, with the number of GPUs: "
            "dptrace record --gpus N train.py …; DeepSpeed reads the ranks from torchrun's variables."
        )
    if name in _OUTER and not Path(first).is_file():
        raise UsageError(f"Put {name} before dptrace, not after it: {name} … dptrace record train.py …")
    return Program(first, arguments=tuple(rest))


def _parse_python(interpreter: str, words: Sequence[str]) -> Program:
    """Read what follows ``python``; *words* starts with ``-m`` where there is none."""
    if interpreter != "-m":
        _check_interpreter(interpreter)
    environment: dict[str, str] = {}
    left = list(words)
    while left and left[0].startswith("-") and left[0] != "-":
        flags = left.pop(0)[1:]
        while flags:
            flag, flags = flags[0], flags[1:]
            if flag in _PYTHON_FLAGS:
                name, value = _PYTHON_FLAGS[flag]
                environment[name] = str(int(environment.get(name, "0")) + 1) if flag == "O" else value
                continue
            if flag not in "mWX":
                _refuse_python_flag(flag)
            value, flags = flags or (left.pop(0) if left else ""), ""
            if not value:
                raise UsageError(f"-{flag} needs a value, such as {'-m pkg.train' if flag == 'm' else '-W ignore'}.")
            if flag == "m":
                return _from_module(value, left, environment)
            environment |= _python_setting(flag, value, environment)
    if not left or left[0] == "-":
        raise UsageError(f"Name the script after {os.path.basename(interpreter)}: dptrace reads none from its input.")
    return Program(left[0], arguments=tuple(left[1:]), environment=environment)


def _python_setting(flag: str, value: str, environment: dict[str, str]) -> dict[str, str]:
    if flag == "W":
        before = environment.get("PYTHONWARNINGS", os.environ.get("PYTHONWARNINGS", ""))
        return {"PYTHONWARNINGS": f"{before},{value}" if before else value}
    if value not in _PYTHON_X:
        raise UsageError(f"python -X {value}: dptrace honors -X {', -X '.join(_PYTHON_X)}; leave it out.")
    return {_PYTHON_X[value]: "1"}


def _refuse_python_flag(flag: str) -> None:
    if flag == "c":
        raise UsageError("python -c: write the code to a file, and record that.")
    raise UsageError(f"python -{flag}: dptrace honors -m, -u, -B, -O, -s, -W and -X; leave -{flag} out.")


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


def _from_module(module: str, words: Sequence[str], environment: dict[str, str]) -> Program:
    if module in _TORCHRUN_MODULES:
        return _from_torchrun(parse_torchrun(module, words), environment)
    if module in _ACCELERATE_MODULES:
        program = _from_accelerate(words[1:] if module.endswith("cli") else words)
        return replace(program, environment=environment | program.environment)
    return Program(module, True, tuple(words), environment)


def _from_torchrun(command: Torchrun, environment: dict[str, str] | None = None) -> Program:
    notes: tuple[str, ...] = ()
    if command.needless:
        what = ", ".join(command.needless)
        notes = (f"dptrace arranges itself how the ranks meet: {what} {_is_are(command.needless)} not needed.",)
    return Program(
        command.script,
        command.is_module,
        command.arguments,
        environment or {},
        command.processes,
        command.settings,
        command.agent_options,
        notes,
    )


def _is_are(things: Sequence[str]) -> str:
    return "is" if len(things) == 1 else "are"


def _from_accelerate(words: Sequence[str]) -> Program:
    command = parse_accelerate(words)
    return Program(
        command.script,
        command.is_module,
        command.arguments,
        command.environment,
        command.processes,
        notes=command.notes,
    )


def process_count(text: str, gpus: int) -> int:
    """Return the number of processes that torchrun's ``--nproc-per-node`` stands for.

    Args:
        gpus: the number of this machine's GPUs.

    Raises:
        UsageError: it is no number and no word that torchrun knows, or there is no GPU.
    """
    if text == "cpu" or (text == "auto" and not gpus):
        return os.cpu_count() or 1
    if text in ("gpu", "xpu", "auto"):
        if not gpus:
            raise UsageError(f"--nproc-per-node {text}: this machine has no GPU; give a number.")
        return gpus
    try:
        number = int(text)
    except ValueError:
        raise UsageError(f"--nproc-per-node {text}: give a number, gpu, cpu or auto.") from None
    if number < 1:
        raise UsageError(f"--nproc-per-node {text}: must be 1 or more.")
    return number


def merge_settings(options: dict[str, Any], settings: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Return the options of ``dptrace record`` with those of the program's own command line.

    Raises:
        UsageError: both give one, and differ.
    """
    for name, value in settings.items():
        if options[name] not in (defaults[name], value) and value != defaults[name]:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} {options[name]} before the program and {option} {value} in it: keep one.")
    kept = {name: value for name, value in settings.items() if value != defaults[name]}
    return options | kept


def check_program(program: Program) -> None:
    """Check that the script or the module is there, without importing anything.

    Raises:
        UsageError: it is not.
    """
    if program.is_module:
        _check_module(program.target)
        return
    path = Path(program.target)
    if path.is_file() or (path / "__main__.py").is_file():
        return
    if path.is_dir():
        raise UsageError(f"{path} is a folder without a __main__.py: name a script in it.")
    hint = ""
    if os.sep not in program.target and shutil.which(program.target):
        hint = f" {program.target} is a command: name the Python script that it runs, or -m and its module."
    raise UsageError(f"{program.target}: script not found.{hint}")


def _check_module(name: str) -> None:
    top, *inner = name.split(".")
    here = os.getcwd()
    sys.path.insert(0, here)  # where python -m looks first
    try:
        spec: ModuleSpec | None = importlib.util.find_spec(top)
    except (ImportError, ValueError):
        spec = None
    finally:
        sys.path.remove(here)
    found = top
    for part in inner:
        if spec is None or spec.submodule_search_locations is None:
            break
        found = f"{found}.{part}"
        spec = _find_in_package(found, list(spec.submodule_search_locations))
    if spec is None or found != name:
        missing = found if spec is None else f"{found}.{inner[found.count('.')]}"
        raise UsageError(
            f"-m {name}: there is no module {missing} here or among the installed packages. Give a module's dotted "
            "name, without .py, from the folder that contains its package."
        )
    locations = spec.submodule_search_locations
    if locations is not None and PathFinder.find_spec(f"{name}.__main__", list(locations)) is None:
        raise UsageError(f"-m {name} is a package without a __main__ module: name one of its modules.")


def _find_in_package(name: str, locations: list[str]) -> ModuleSpec | None:
    """Return the spec of a module in a package that is not imported; None if it is not there."""
    try:
        return PathFinder.find_spec(name, locations)
    except KeyError:
        # A folder without __init__.py in another: importlib looks for the outer one among the imported modules.
        part = name.rpartition(".")[2]
        spec = ModuleSpec(name, None, is_package=True)
        spec.submodule_search_locations = [os.path.join(location, part) for location in locations]
        return spec
