"""Read the command line of torchrun: which of its options dptrace honors, passes on, does not need, or refuses."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from dptrace.errors import UsageError

__all__ = ["Torchrun", "parse_torchrun"]

_HONOURED = ("nnodes", "nproc-per-node", "rdzv-endpoint", "node-rank", "max-restarts", "master-addr", "master-port")
_PASSED_ON = ("monitor-interval", "start-method", "event-log-handler", "role", "numa-binding", "shutdown-timeout")
_ABOUT_OUTPUT = "dptrace shows rank 0's output, and keeps every rank's in the run folder when one dies"
_REFUSED = {
    **dict.fromkeys(
        (
            *("log-dir", "redirects", "tee", "local-ranks-filter", "logs-specs"),
            *("duplicate-stdout-filters", "duplicate-stderr-filters"),
        ),
        f"{_ABOUT_OUTPUT}; leave it out.",
    ),
    "rdzv-conf": "dptrace sets up the rendezvous itself, with --rdzv-endpoint for several machines; leave it out.",
    "local-addr": "dptrace sets the address itself; leave it out.",
    "signals-to-handle": "dptrace needs torchrun's own handling of signals to end all ranks; leave it out.",
}
_SHORT = {"redirects": "-r", "tee": "-t"}
_RENDEZVOUS = ("static", "c10d")


@dataclass(frozen=True, slots=True)
class Torchrun:
    """What a torchrun command line asks for."""

    script: str
    is_module: bool
    arguments: tuple[str, ...]
    processes: str
    """A number, or ``gpu``, ``auto`` or ``cpu``."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Options of ``dptrace record`` that it sets, by attribute name."""
    agent_options: tuple[str, ...] = ()
    """Options for torchrun itself."""
    needless: tuple[str, ...] = ()
    """Options that the user may leave out, because dptrace arranges the same itself."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}.")


def _names(name: str) -> list[str]:
    short = [_SHORT[name]] if name in _SHORT else []
    return [*short, *dict.fromkeys((f"--{name}", f"--{name.replace('-', '_')}"))]


def _parser(program: str) -> _Parser:
    parser = _Parser(prog=program, add_help=False)
    for name in (*_HONOURED, "rdzv-id", "rdzv-backend"):
        # torchrun reads its defaults from variables of these names.
        parser.add_argument(*_names(name), default=os.environ.get(f"PET_{name.upper().replace('-', '_')}"))
    for name in (*_PASSED_ON, *_REFUSED):
        parser.add_argument(*_names(name))
    for name in ("standalone", "no-python", "run-path", "use-env", "virtual-local-rank"):
        parser.add_argument(*_names(name), action="store_true")
    parser.add_argument("-m", "--module", action="store_true")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def parse_torchrun(program: str, words: Sequence[str]) -> Torchrun:
    """Read the words after ``torchrun``, or after one of the modules that are like it.

    Args:
        program: its name, for messages; ``torch.distributed.launch`` passes ``--local-rank`` to the script.

    Raises:
        UsageError: an option is unknown, or would have to be ignored.
    """
    given = vars(_parser(program).parse_args(words))
    for name, why in _REFUSED.items():
        if given[name.replace("-", "_")] is not None:
            raise UsageError(f"{program} --{name}: {why}")
    if given["no_python"]:
        raise UsageError(f"{program} --no-python: dptrace records Python programs; name the script, or -m its module.")
    local_rank: tuple[str, ...] = ()
    if program == "torch.distributed.launch" and not given["use_env"]:
        local_rank = ("--local-rank=${local_rank}",)  # torchrun fills it in for each rank
    passed_on = [(name, given[name.replace("-", "_")]) for name in _PASSED_ON]
    options = [f"--{name}={value}" for name, value in passed_on if value is not None]
    options += ["--virtual-local-rank"] if given["virtual_local_rank"] else []
    return Torchrun(
        script=given["script"],
        is_module=given["module"],
        arguments=(*local_rank, *given["arguments"]),
        processes=given["nproc_per_node"] or "1",
        settings=_settings(program, given),
        agent_options=tuple(options),
        needless=_needless(given),
    )


def _settings(program: str, given: dict[str, Any]) -> dict[str, Any]:
    nodes = given["nnodes"] or "1"
    low, _, high = nodes.partition(":")
    if high and low != high:
        raise UsageError(f"{program} --nnodes {nodes}: dptrace records a fixed number of machines; give one number.")
    settings: dict[str, Any] = {"nnodes": _number(program, "nnodes", low, 1)}
    if given["max_restarts"] is not None:
        settings["max_restarts"] = _number(program, "max-restarts", given["max_restarts"], 0)
    backend = given["rdzv_backend"]
    if backend is not None and backend not in _RENDEZVOUS:
        raise UsageError(
            f"{program} --rdzv-backend {backend}: dptrace meets the ranks through c10d; leave it out, and give "
            "--rdzv-endpoint HOST:PORT for several machines."
        )
    if settings["nnodes"] == 1:
        return settings
    if given["standalone"]:
        raise UsageError(f"{program} --standalone is for one machine: leave it or --nnodes {nodes} out.")
    if given["node_rank"] is not None:
        settings["node_rank"] = _number(program, "node-rank", given["node_rank"], 0)
    endpoint = given["rdzv_endpoint"]
    if endpoint is None and given["master_addr"] is not None:
        endpoint = f"{given['master_addr']}:{given['master_port'] or 29500}"
    if endpoint is not None:
        settings["rdzv_endpoint"] = endpoint if ":" in endpoint else f"{endpoint}:29400"
    return settings


def _number(program: str, name: str, text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        raise UsageError(f"{program} --{name} {text}: give a number.") from None
    if number < least:
        raise UsageError(f"{program} --{name} {text}: must be {least} or more.")
    return number


def _needless(given: dict[str, Any]) -> tuple[str, ...]:
    names = ["rdzv-id"]
    if (given["nnodes"] or "1") in ("1", "1:1"):
        names += ["node-rank", "rdzv-endpoint", "master-addr", "master-port"]
    elif given["rdzv_endpoint"] is not None:
        names += ["master-addr", "master-port"]
    return tuple(f"--{name}" for name in names if given[name.replace("-", "_")] is not None)
