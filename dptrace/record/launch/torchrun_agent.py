"""Run torchrun, keep the output of the ranks that are not shown, and write which ranks failed to a file.

``python -m dptrace.record.launch.torchrun_agent FILE SHOWN [torchrun's arguments]``: the output of the first SHOWN
ranks of this machine goes where this process's goes, that of rank N to ``rankN.log`` next to FILE.
"""

from __future__ import annotations

import argparse
import logging
import os
import select
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch.distributed import run
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, api
from torch.distributed.elastic.multiprocessing.api import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

from dptrace.record.messages import finish_path, rank_log, write_json, writers
from dptrace.record.processes import AGENT_PID_ENV, LAUNCHER_PID_ENV, end_with_parent
from dptrace.record.run_folder import finish_for_launcher, note_agent

_POLL_S = 0.1
"""How often the agent looks at its ranks where they print nothing."""


def main() -> int:
    """Run torchrun and return its exit code: 1 if a rank failed, or that rank's where FILE cannot be written."""
    launcher = os.environ.get(LAUNCHER_PID_ENV)
    end_with_parent(signal.SIGTERM, launcher)
    os.environ[AGENT_PID_ENV] = str(os.getpid())
    if "LOGLEVEL" not in os.environ:
        # The launcher reports failures, once and shorter.
        logging.disable(logging.ERROR)
    path, RankLogs.folder, RankLogs.shown = Path(sys.argv[1]), Path(sys.argv[1]).parent, int(sys.argv[2])
    note_agent(path.parent)
    _write_restarts(path)
    _wait_for_writers(path.parent)
    setattr(run, "DefaultLogsSpecs", RankLogs)  # noqa: B010  # what run.run() makes
    try:
        return _run(path, sys.argv[3:])
    finally:
        RankLogs.finish()
        if launcher is not None:
            finish_for_launcher(path.parent, int(launcher))


def _run(path: Path, arguments: list[str]) -> int:
    try:
        parsed = run.parse_args(arguments)
        _listen_on_loopback(parsed)
        run.run(parsed)
    except ChildFailedError as error:
        failures = sorted(error.failures.items(), key=lambda item: item[1].timestamp)
        try:
            write_json(path, [{"rank": rank, "exit_code": failure.exitcode} for rank, failure in failures])
        except OSError:  # the folder was removed, or the disk is full
            code = failures[0][1].exitcode
            return code if code > 0 else 128 - code
        return 1
    except SignalException as stopped:
        return 128 + int(stopped.sigval)
    return 0


class RankLogs(DefaultLogsSpecs):
    """Takes the output of ranks through pipes, so that no full disk makes a rank's print() fail."""

    folder = Path()
    shown = 0
    _pumps: list[_Pump] = []  # noqa: RUF012  # of this process

    def reify(self, envs: dict[int, dict[str, str]]) -> Any:
        """Return where the output of each rank goes; torchrun opens it before the rank starts."""
        destinations = super().reify(envs)
        for tails in (destinations.tee_stdouts, destinations.tee_stderrs):
            tails.clear()
        for local, variables in envs.items():
            if local >= self.shown:
                pump = _Pump(rank_log(self.folder, int(variables["RANK"])))
                self._pumps.append(pump)
                destinations.stdouts[local] = destinations.stderrs[local] = pump.entrance
        return destinations

    @classmethod
    def finish(cls) -> None:
        """Write what is still in the pipes."""
        for pump in cls._pumps:
            pump.finish()


class _Pump(threading.Thread):
    """Writes what comes through a pipe to a log, and drops what cannot be written."""

    def __init__(self, log: Path) -> None:
        super().__init__(daemon=True)
        self._log, self._ended = log, threading.Event()
        self._read, self._write = os.pipe()
        self.entrance = f"/dev/fd/{self._write}"
        self.start()

    def run(self) -> None:
        while True:
            if select.select([self._read], [], [], _POLL_S)[0]:
                block = os.read(self._read, 1 << 16)
                with suppress(OSError), self._log.open("ab") as file:
                    file.write(block)
            elif self._ended.is_set():
                return

    def finish(self) -> None:
        self._ended.set()
        self.join()


def _wait_for_writers(folder: Path) -> None:
    """Make torchrun wait for ranks that write a trace before it kills what stays after its signal.

    When a user ends the training, the launcher says how long the ranks may take, and kills them.
    """

    def close(context: Any, death_sig: signal.Signals, timeout: int = 30) -> None:
        handlers = context.subprocess_handlers.values()
        for handler in handlers:
            if handler.proc.poll() is None:
                handler.close(death_sig=death_sig)
        deadline = time.monotonic() + timeout
        while any(handler.proc.poll() is None for handler in handlers) or writers(folder):
            if time.monotonic() > deadline and not writers(folder) and not finish_path(folder).exists():
                break
            time.sleep(_POLL_S)
        for handler in handlers:
            if handler.proc.poll() is None:
                handler.close(death_sig=signal.SIGKILL)
                handler.proc.wait()

    if hasattr(api.SubprocessContext, "_close"):
        setattr(api.SubprocessContext, "_close", close)  # noqa: B010  # a private method


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
            with suppress(OSError):
                write_json(path.with_name(f"restarts.{path.name}"), restarts)
        return result

    LocalElasticAgent._monitor_workers = monitor_and_write  # type: ignore[method-assign]


if __name__ == "__main__":
    sys.exit(main())
