"""Run torchrun and write which ranks failed to a file.

``python -m dptrace.record.launch.torchrun_agent FILE [torchrun's arguments]``
"""

from __future__ import annotations

import argparse
import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from torch.distributed import run
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import api
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from dptrace.record.ranks.process_tree import AGENT_PID_ENV, LAUNCHER_PID_ENV, end_with_parent
from dptrace.record.run_folder.messages import write_json

__all__ = ["allow_ranks_of_two_digits", "main"]


def main() -> int:
    """Run torchrun and return its exit code, 1 if a rank failed."""
    end_with_parent(signal.SIGTERM, os.environ.get(LAUNCHER_PID_ENV))
    os.environ[AGENT_PID_ENV] = str(os.getpid())
    if "LOGLEVEL" not in os.environ:
        # The launcher reports failures, once and shorter.
        logging.disable(logging.ERROR)
    path, *arguments = sys.argv[1:]
    _write_restarts(Path(path))
    allow_ranks_of_two_digits()
    try:
        parsed = run.parse_args(arguments)
        _listen_on_loopback(parsed)
        run.run(parsed)
    except ChildFailedError as error:
        failures = sorted(error.failures.items(), key=lambda item: item[1].timestamp)
        write_json(Path(path), [{"rank": rank, "exit_code": failure.exitcode} for rank, failure in failures])
        return 1
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    return 0


def allow_ranks_of_two_digits() -> None:
    """Let ``--redirects 0:3,10:3`` name more than ten ranks: torchrun checks it by an expression for one digit."""
    if hasattr(api, "_MAPPING_REGEX"):
        api._MAPPING_REGEX = r"^(\d+:[0123],)*(\d+:[0123])$"


def _listen_on_loopback(arguments: argparse.Namespace) -> None:
    try:
        from dptrace.record.launch.loopback import listen_on_loopback
    except ImportError:  # a torch whose rendezvous has other classes
        return
    listen_on_loopback(arguments)


def _write_restarts(path: Path) -> None:
    """Make torchrun write to a file next to *path* which ranks failed each time that it restarts all of them.

    torchrun only logs restarts and has no public hook for them; a version without this private method writes nothing.
    """
    monitor = getattr(LocalElasticAgent, "_monitor_workers", None)
    if monitor is None:
        return
    restarts: list[dict[str, Any]] = []

    def monitor_and_write(agent: Any, group: Any) -> Any:
        result = monitor(agent, group)
        restarts_left = getattr(agent, "_remaining_restarts", 0)
        if getattr(result, "failures", None) and restarts_left > 0:
            failures = sorted(result.failures.items(), key=lambda item: item[1].timestamp)
            exits = [{"rank": rank, "exit_code": failure.exitcode} for rank, failure in failures]
            restarts.append({"attempt": len(restarts), "time_ns": time.time_ns(), "exits": exits})
            write_json(path.with_name(f"restarts.{path.name}"), restarts)
        return result

    LocalElasticAgent._monitor_workers = monitor_and_write  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(main())
