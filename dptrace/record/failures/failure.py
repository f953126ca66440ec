"""Find which rank failed first, and why, from the ranks' messages, exit codes and logs."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dptrace.core.units import plural
from dptrace.record.failures.causes import explain
from dptrace.record.run_folder.messages import read_messages

__all__ = [
    "Failure",
    "find_failure",
    "find_restarts",
    "has_failures",
    "last_lines",
    "recorder_failures",
]

_LAST_LINES = 12
_FOLLOW_UP_ERROR = re.compile(
    r"connection (reset|closed|refused)|broken pipe|by peer|remote|abort|timed? ?out", re.IGNORECASE
)
"""Matches the errors of ranks whose peer has ended."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure that caused the others."""

    rank: int | None
    message: str
    exit_code: int = 1
    is_user_error: bool = False
    """Whether the message is complete advice, so that the rank's last lines would only hide it."""

    def to_dict(self) -> dict[str, Any]:
        """Return the entry for run.json."""
        return {"rank": self.rank, "message": self.message}


def find_failure(folder: Path) -> Failure | None:
    """Find the failure that ended the run; None if the folder contains no message or exit code of one.

    :func:`find_restarts` returns the failures after which torchrun restarted the ranks.
    """
    agents = sorted(folder.glob("agent*.json"))
    exits = [entry for agent in agents for entry in json.loads(agent.read_text(encoding="utf-8"))]
    messages = _messages(folder)
    failure = _first_failure(exits, messages)
    return failure if failure is None else _blame_who_left(folder, failure, messages)


def has_failures(folder: Path, before_ns: int | None = None) -> bool:
    """Return whether a rank has reported a failure since the last restart.

    Args:
        before_ns: leave out what comes later, in ns since 1970.
    """
    return any(before_ns is None or int(message["time_ns"]) < before_ns for message in _messages(folder))


def recorder_failures(folder: Path) -> dict[int, str]:
    """Return why ranks could not be recorded although their training went on, by rank."""
    failed = [found for found in read_messages(folder, "failure") if found.get("of_recorder")]
    return {found["rank"]: found["message"] for found in failed}


def _messages(folder: Path) -> list[dict[str, Any]]:
    """Return the failures of ranks since the last restart."""
    restarts = len(_restarts(folder))
    found = [message for message in read_messages(folder, "failure") if message.get("attempt", 0) >= restarts]
    return [message for message in found if not message.get("of_recorder")]


def _blame_who_left(folder: Path, failure: Failure, messages: Sequence[dict[str, Any]]) -> Failure:
    """Name a rank that ended without an error before its peer failed for want of it."""
    failed = {int(message["rank"]): int(message["time_ns"]) for message in messages}
    if failure.rank not in failed or not _FOLLOW_UP_ERROR.search(failure.message):
        return failure
    left = {}
    for path in folder.glob("rank*.steps"):
        rank, (done, _, recorded, *_) = int(path.stem.removeprefix("rank")), map(int, path.read_text().split())
        ended_ns = path.stat().st_mtime_ns
        if recorded < 0 and rank not in failed and ended_ns < failed[failure.rank]:
            left[ended_ns] = rank, done
    if not left:
        return failure
    first, done = left[min(left)]
    text = f"rank {first} ended without an error first, after {plural(done, 'step')}; rank {failure.rank} then failed"
    return Failure(None, f"{text}: {failure.message}", failure.exit_code)


def _first_failure(exits: Sequence[dict[str, Any]], messages: Sequence[dict[str, Any]]) -> Failure | None:
    """Return the failure that caused the others.

    Args:
        exits: exit codes of ranks in torchrun's order.
        messages: the failure messages of the ranks.
    """
    messages = sorted(messages, key=lambda message: int(message["time_ns"]))
    # torchrun doesn't see the ranks that a script itself starts; the script's process reports their exit codes.
    exits = [*(message for message in messages if message["exit_code"] < 0), *exits]
    messages = [message for message in messages if message["exit_code"] >= 0]
    for entry in exits:
        number = -entry["exit_code"]
        # A signal leaves no message and precedes the errors of peers. torchrun stops the peers by SIGTERM. SIGABRT
        # comes from NCCL's watchdog in the peers of a dead rank, or from a failed assertion in the rank itself.
        is_cause = number > 0 and number != signal.SIGTERM
        if is_cause and not (
            number == signal.SIGABRT and messages and not _FOLLOW_UP_ERROR.search(messages[0]["message"])
        ):
            name = signal.Signals(number).name
            hint = " (out of memory?)" if name == "SIGKILL" else ""
            return Failure(entry["rank"], f"killed by {name}{hint}")
    if messages:
        first = messages[0]
        message = first["message"] if first["advice"] else explain(first["message"])
        return Failure(first["rank"], message, first["exit_code"], first["advice"])
    if exits:
        return Failure(exits[0]["rank"], f"exit code {exits[0]['exit_code']}")
    return None


def _restarts(folder: Path) -> list[dict[str, Any]]:
    """Read which ranks had failed before each restart; each machine reports its own."""
    restarts: dict[int, dict[str, Any]] = {}
    for path in sorted(folder.glob("restarts.agent*.json")):
        for entry in json.loads(path.read_text(encoding="utf-8")):
            restart = restarts.setdefault(entry["attempt"], {**entry, "exits": []})
            restart["exits"] += entry["exits"]
    return [restarts[attempt] for attempt in sorted(restarts)]


def find_restarts(folder: Path) -> list[dict[str, Any]]:
    """Return the failure before each restart, as entries of run.json; ``time_s`` in seconds since 1970."""
    entries = []
    for restart in _restarts(folder):
        attempt = restart["attempt"]
        messages = [found for found in read_messages(folder, "failure") if found.get("attempt", 0) == attempt]
        failure = _first_failure(restart["exits"], messages) or Failure(None, "unknown")
        entries.append({"attempt": attempt, "time_s": restart["time_ns"] / 1e9, **failure.to_dict()})
    return entries


def last_lines(log: Path) -> str:
    """Return the last lines of a rank's output under a heading, to add to a message; "" if there are none."""
    if not log.exists():
        return ""
    lines = log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()
    # Kineto of torch 2.13 prints a line each time that it starts or stops.
    last = [f"\n    {line}" for line in lines if not line.startswith("USDT:")][-_LAST_LINES:]
    return "\nIts last lines:" + "".join(last) if last else ""
