"""What to record, from the words after dptrace's own options.

``train.py``, ``-m pkg.train``, ``python train.py``, ``torchrun train.py``, and the like.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, NoReturn

from dptrace.errors import MissingExtraError, UsageError

_PYTHON = re.compile(r"(?:python|pypy)(?P<version>\d(?:\.\d+)?)?t?(?:\.exe)?")
_TORCHRUN_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_ACCELERATE_MODULES = {"accelerate.commands.launch": 0, "accelerate.commands.accelerate_cli": 1}
"""What starts ``accelerate launch`` with ``python -m``, and how many words follow before its options."""
_RANK_LAUNCHERS = ("srun", "mpirun", "mpiexec", "horovodrun", "deepspeed")
"""Launchers whose options dptrace does not know; each rank can record itself."""
_OUTER = {
    *("uv", "poetry", "pipenv", "pdm", "conda", "mamba", "micromamba"),
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
    python_options: tuple[str, ...] = ()
    """Options of Python, such as ``-O``."""
    torchrun: tuple[str, ...] | None = None
    """The options of torchrun; None if the command line does not start it."""
    launcher: tuple[str, ...] = ()
    """Another launcher with its options, which starts the ranks in place of torchrun."""
    processes: int | None = None
    """Processes per machine; None if the command line does not say."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Options of ``dptrace record`` that it sets, by attribute name."""

    @property
    def name(self) -> str:
        """The name of its run."""
        if not self.is_module:
            return Path(self.target).stem or Path(self.target).resolve().name
        return self.target.removesuffix(".__main__").rpartition(".")[2]


def parse_program(words: Sequence[str]) -> Program:
    """Read the words that follow dptrace's options; there is at least one.

    Raises:
        UsageError: they name nothing that dptrace can start.
    """
    first, rest = words[0], list(words[1:])
    name = os.path.basename(first)
    if first.startswith("-m"):
        return _parse_python("-m", words)
    if _PYTHON.fullmatch(name):
        return _parse_python(first, rest)
    if name == "torchrun":
        return _from_torchrun(name, rest)
    if name == "accelerate-launch":
        return _from_accelerate([first], rest)
    if name == "accelerate" and rest[:1] == ["launch"]:
        return _from_accelerate([first, "launch"], rest[1:])
    if not Path(first).is_file():
        if name in _RANK_LAUNCHERS:
            raise UsageError(_advise_ranks(name, words))
        if name in _OUTER:
            raise UsageError(f"Put {name} before dptrace, not after it: {name} … dptrace record train.py …")
    return Program(first, arguments=tuple(rest))


def _advise_ranks(name: str, words: Sequence[str]) -> str:
    """Return how each rank of another launcher records itself."""
    script = next((n for n, word in enumerate(words) if n and (word.endswith(".py") or word == "-m")), len(words))
    has_python = any(_PYTHON.fullmatch(os.path.basename(word)) for word in words[:script])
    flag = "--module" if name == "deepspeed" else "-m" if has_python else "python -m"
    line = " ".join([*words[:script], flag, "dptrace.record", *(words[script:] or ["train.py"])])
    return (
        f"dptrace does not start {name}. Let {name} start the ranks, and each rank record itself: {line} "
        "(options such as --steps 5 or -o runs/x go after dptrace.record)."
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
            return _from_module(value, left, options)
        options += [f"-{valued}", value] if valued else []
    if not left or left[0] == "-":
        raise UsageError(f"Name the script after {os.path.basename(interpreter)}: dptrace reads none from its input.")
    return Program(left[0], arguments=tuple(left[1:]), python_options=tuple(options))


_EXAMPLES = {"m": "pkg.train", "W": "ignore", "X": "dev"}


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


def _from_module(module: str, words: Sequence[str], options: Sequence[str]) -> Program:
    if module in _TORCHRUN_MODULES:
        return _from_torchrun(module, words)  # the ranks get none of Python's options
    if module in _ACCELERATE_MODULES:
        count = _ACCELERATE_MODULES[module]
        return _from_accelerate([sys.executable, *options, "-m", module, *words[:count]], words[count:])
    return Program(module, True, tuple(words), tuple(options))


class _Refusing:
    """Makes an argument parser raise UsageError where it would end the process."""

    def __init__(self, program: str) -> None:
        self.program = program

    def __call__(self, message: str) -> NoReturn:
        raise UsageError(f"{self.program}: {message}.")


def _split(
    program: str, parser: argparse.ArgumentParser, words: Sequence[str]
) -> tuple[argparse.Namespace, tuple[str, ...]]:
    """Read a launcher's command line with its own parser; also return the words before the script.

    Raises:
        UsageError: the launcher would refuse it, or it starts something else than a Python program.
    """
    parser.error = _Refusing(program)  # type: ignore[method-assign]
    given = parser.parse_args(words)
    script = len(words) - len(given.training_script_args) - 1
    if list(words[script:]) != [given.training_script, *given.training_script_args]:
        raise UsageError(f"{program}: leave -- out, so that the words after the script's name are the script's.")
    if given.no_python or getattr(given, "run_path", False):
        raise UsageError(f"{program} --no-python: dptrace records Python programs; name the script, or -m its module.")
    return given, tuple(words[:script])


def _from_torchrun(program: str, words: Sequence[str]) -> Program:
    """Read the words after ``torchrun``, or after one of the modules that are like it."""
    try:
        from torch.distributed import run
    except ModuleNotFoundError:
        raise MissingExtraError("Recording needs torch", "record") from None
    parser = run.get_args_parser()
    # None if it is not given, which matters on several machines.
    parser.set_defaults(node_rank=os.environ.get("PET_NODE_RANK"), master_addr=os.environ.get("PET_MASTER_ADDR"))
    passes_rank = program == "torch.distributed.launch"
    if passes_rank:
        parser.add_argument("--use-env", "--use_env", action="store_true")
    given, options = _split(program, parser, words)
    try:
        fewest, most = run.parse_min_max_nnodes(given.nnodes)
        processes = run.determine_local_world_size(given.nproc_per_node)
    except (ValueError, RuntimeError) as error:
        what = f"--nnodes {given.nnodes} --nproc-per-node {given.nproc_per_node}"
        raise UsageError(f"{program} {what}: {str(error).rstrip('.')}; give a number.") from None
    if processes < 1:
        raise UsageError(f"{program} --nproc-per-node {given.nproc_per_node}: must be 1 or more.")
    if fewest != most:
        raise UsageError(
            f"{program} --nnodes {given.nnodes}: dptrace records a fixed number of machines; give one number."
        )
    if given.rdzv_backend not in ("static", "c10d"):
        raise UsageError(
            f"{program} --rdzv-backend {given.rdzv_backend}: dptrace meets the ranks through c10d; leave it out, and "
            "give --rdzv-endpoint HOST:PORT for several machines."
        )
    settings = {"nnodes": most, "max_restarts": given.max_restarts}
    if most > 1:
        address = given.rdzv_endpoint or (given.master_addr and f"{given.master_addr}:{given.master_port or 29500}")
        settings |= {"node_rank": given.node_rank, "rdzv_endpoint": address or None}
    arguments = tuple(given.training_script_args)
    if passes_rank:
        options = tuple(word for word in options if word not in ("--use-env", "--use_env"))
        # torchrun fills in the number for each rank.
        arguments = arguments if given.use_env else ("--local-rank=${local_rank}", *arguments)
    return Program(
        given.training_script, given.module, arguments, torchrun=options, processes=processes, settings=settings
    )


def _from_accelerate(launcher: Sequence[str], words: Sequence[str]) -> Program:
    """Read the words after ``accelerate launch``, which starts the ranks itself."""
    try:
        from accelerate.commands.launch import launch_command_parser
    except ImportError:
        raise UsageError(
            f"accelerate is not installed in the Python that runs dptrace, {sys.executable}. Where it is, each rank "
            "can record itself: accelerate launch … -m dptrace.record train.py …"
        ) from None
    given, options = _split("accelerate launch", launch_command_parser(), words)
    return Program(
        given.training_script, given.module, tuple(given.training_script_args), launcher=(*launcher, *options)
    )


def merge_settings(options: dict[str, Any], settings: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """Return the options of ``dptrace record`` with those of the program's own command line.

    Raises:
        UsageError: both give one, and differ.
    """
    kept = {name: value for name, value in settings.items() if value != defaults.get(name)}
    for name, value in kept.items():
        if options[name] not in (defaults.get(name), value):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} {options[name]} before the program and {option} {value} in it: keep one.")
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
