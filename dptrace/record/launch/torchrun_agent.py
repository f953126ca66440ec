"""Run torchrun and write which ranks failed to a file.

``python -m dptrace.record.launch.torchrun_agent FILE [torchrun's arguments]``
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from torch.distributed import run
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from dptrace.record.launch.messages import write_json
from dptrace.record.launch.process_tree import AGENT_PID_ENV, LAUNCHER_PID_ENV, end_with_parent

__all__ = ["main"]


def main() -> int:
    """Run torchrun; give 1 when a rank failed."""
    end_with_parent(signal.SIGTERM, os.environ.get(LAUNCHER_PID_ENV))
    os.environ[AGENT_PID_ENV] = str(os.getpid())
    if "LOGLEVEL" not in os.environ:
        # The launcher says what happened, once and shorter.
        logging.disable(logging.ERROR)
    note, *arguments = sys.argv[1:]
    _note_restarts(Path(note))
    try:
        run.run(run.parse_args(arguments))
    except ChildFailedError as error:
        failures = sorted(error.failures.items(), key=lambda item: item[1].timestamp)
        write_json(Path(note), [{"rank": rank, "exit_code": failure.exitcode} for rank, failure in failures])
        return 1
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    return 0


def _note_restarts(note: Path) -> None:
    """Let torchrun note, beside *note*, which ranks failed each time that it starts all of them anew.

    It logs that and tells it nobody; torch names no public way to it, so that one that has it elsewhere notes nothing.
    """
    watch = getattr(LocalElasticAgent, "_monitor_workers", None)
    if watch is None:
        return
    seen: list[dict[str, Any]] = []

    def watching(agent: Any, group: Any) -> Any:
        result = watch(agent, group)
        left = getattr(agent, "_remaining_restarts", 0)
        if getattr(result, "failures", None) and left > 0:
            failures = sorted(result.failures.items(), key=lambda item: item[1].timestamp)
            exits = [{"rank": rank, "exit_code": failure.exitcode} for rank, failure in failures]
            seen.append({"attempt": len(seen), "time_ns": time.time_ns(), "exits": exits})
            write_json(note.with_name(f"restarts.{note.name}"), seen)
        return result

    LocalElasticAgent._monitor_workers = watching  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(main())
