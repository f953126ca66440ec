"""Find which rank failed first, and why, from the ranks' messages, exit codes and logs."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dptrace.record.failures.causes import explain
from dptrace.record.run_folder.messages import read_messages

__all__ = [
    "Failure",
    "collect_logs",
    "find_failure",
    "find_restarts",
    "has_failures",
    "last_lines",
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
    restarts = len(_restarts(folder))
    return _first_failure(
        exits, [message for message in read_messages(folder, "failure") if message.get("attempt", 0) >= restarts]
    )


def has_failures(folder: Path) -> bool:
    """Return whether a rank has reported a failure since the last restart."""
    restarts = len(_restarts(folder))
    return any(message.get("attempt", 0) >= restarts for message in read_messages(folder, "failure"))


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


def collect_logs(folder: Path, ranks_per_node: int) -> None:
    """Join torchrun's output files (``logs0`` for node 0) into a ``rank0.log`` for each rank with any output."""
    for local in sorted(folder.glob("logs*/*/attempt_*/*")):
        node = int(local.relative_to(folder).parts[0].removeprefix("logs"))
        parts = [local / name for name in ("stdout.log", "stderr.log")]
        text = "".join(part.read_text(encoding="utf-8", errors="replace") for part in parts if part.exists())
        if text.strip():
            target = folder / f"rank{node * ranks_per_node + int(local.name)}.log"
            with target.open("a", encoding="utf-8") as file:
                file.write(text)


def last_lines(log: Path) -> str:
    """Return the last lines of a rank's output under a heading, to add to a message; "" if there are none."""
    if not log.exists():
        return ""
    lines = log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()
    # Kineto of torch 2.13 prints a line each time that it starts or stops.
    last = [f"\n    {line}" for line in lines if not line.startswith("USDT:")][-_LAST_LINES:]
    return "\nIts last lines:" + "".join(last) if last else ""
