"""Which rank failed first, and why: told from the ranks' own notes, their exit codes and their last lines."""

from __future__ import annotations

import json
import re
import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dptrace.record.launch.messages import read_messages

__all__ = ["Failure", "collect_logs", "find_failure", "find_restarts", "last_lines", "remove_launcher_files"]

_LAST_LINES = 12
_FOLLOW_UP_ERROR = re.compile(
    r"connection (reset|closed|refused)|broken pipe|by peer|remote|abort|timed? ?out", re.IGNORECASE
)
"""What errors of ranks say whose peer is gone."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure from which the others followed."""

    rank: int | None
    message: str
    exit_code: int = 1
    is_user_error: bool = False
    """Whether the message says all by itself, and the rank's last lines would only hide it."""

    def to_dict(self) -> dict[str, Any]:
        """Give run.json's entry."""
        return {"rank": self.rank, "message": self.message}


def find_failure(folder: Path) -> Failure | None:
    """Find what the ranks failed of for good; None when nothing in the folder tells of it.

    What torchrun got over, by starting the ranks anew, is told by :func:`find_restarts`.
    """
    agents = sorted(folder.glob("agent*.json"))
    exits = [entry for agent in agents for entry in json.loads(agent.read_text(encoding="utf-8"))]
    overcome = len(_restarts(folder))
    return _first_failure(
        exits, [note for note in read_messages(folder, "failure") if note.get("attempt", 0) >= overcome]
    )


def _first_failure(exits: Sequence[dict[str, Any]], notes: Sequence[dict[str, Any]]) -> Failure | None:
    """Tell the failure from which the others followed.

    Args:
        exits: exit codes of ranks, as torchrun tells them, in its order.
        notes: what ranks themselves told.
    """
    messages = sorted(notes, key=lambda note: int(note["time_ns"]))
    for entry in exits:
        number = -entry["exit_code"]
        # A signal comes without a note, and before what peers then say. SIGTERM is how torchrun stops the peers,
        # and SIGABRT how NCCL's watchdog ends the peers of a rank that died; or a rank's own failed assertion.
        cause = number > 0 and number != signal.SIGTERM
        if cause and not (
            number == signal.SIGABRT and messages and not _FOLLOW_UP_ERROR.search(messages[0]["message"])
        ):
            name = signal.Signals(number).name
            why = " (out of memory?)" if name == "SIGKILL" else ""
            return Failure(entry["rank"], f"killed by {name}{why}")
    if messages:
        first = messages[0]
        return Failure(first["rank"], first["message"], first["exit_code"], first["advice"])
    if exits:
        return Failure(exits[0]["rank"], f"exit code {exits[0]['exit_code']}")
    return None


def _restarts(folder: Path) -> list[dict[str, Any]]:
    """Read which ranks had failed each time that all were started anew; each machine saw its own."""
    found: dict[int, dict[str, Any]] = {}
    for path in sorted(folder.glob("restarts.agent*.json")):
        for entry in json.loads(path.read_text(encoding="utf-8")):
            known = found.setdefault(entry["attempt"], {**entry, "exits": []})
            known["exits"] += entry["exits"]
    return [found[attempt] for attempt in sorted(found)]


def find_restarts(folder: Path) -> list[dict[str, Any]]:
    """Tell what made torchrun start the ranks anew, each time: run.json's entries, the time in seconds since 1970."""
    entries = []
    for restart in _restarts(folder):
        notes = [note for note in read_messages(folder, "failure") if note.get("attempt", 0) == restart["attempt"]]
        failure = _first_failure(restart["exits"], notes) or Failure(None, "unknown")
        entries.append({"attempt": restart["attempt"], "time_s": restart["time_ns"] / 1e9, **failure.to_dict()})
    return entries


def collect_logs(folder: Path, ranks_per_node: int) -> None:
    """Turn torchrun's folders of outputs, ``logs0`` for node 0, into a ``rank0.log`` for each rank that spoke."""
    for local in sorted(folder.glob("logs*/*/attempt_*/*")):
        node = int(local.relative_to(folder).parts[0].removeprefix("logs"))
        parts = [local / name for name in ("stdout.log", "stderr.log")]
        text = "".join(part.read_text(encoding="utf-8", errors="replace") for part in parts if part.exists())
        if text.strip():
            target = folder / f"rank{node * ranks_per_node + int(local.name)}.log"
            with target.open("a", encoding="utf-8") as file:
                file.write(text)


def remove_launcher_files(folder: Path) -> None:
    """Take away what only served the launchers."""
    for logs in folder.glob("logs*"):
        shutil.rmtree(logs, ignore_errors=True)
    for note in (*folder.glob("agent*.json"), *folder.glob("restarts.agent*.json"), folder / "progress"):
        note.unlink(missing_ok=True)


def last_lines(log: Path) -> list[str]:
    """Give the end of a rank's output."""
    if not log.exists():
        return []
    lines = log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()
    # Kineto of torch 2.13 writes a line each time that it starts and stops.
    return [line for line in lines if not line.startswith("USDT:")][-_LAST_LINES:]
