"""Find out where ranks are that make no progress, and say which one the others wait for.

The launcher's part; ``stack_dump`` is the ranks'.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dptrace.core.text import sanitize
from dptrace.core.units import duration
from dptrace.record.failures.stack_text import Place, main_thread, place_of

__all__ = [
    "STACKS_SIGNAL",
    "ask_ranks",
    "describe_hang",
    "flight_name",
    "flight_request",
    "stacks_header",
    "stacks_name",
]

STACKS_SIGNAL: int | None = int(signal.SIGRTMIN) + 7 if hasattr(signal, "SIGRTMIN") else None
"""The signal at which a rank writes its stacks; None where the system has no realtime signals.

SIGUSR1 and SIGUSR2 belong to scripts (Slurm sends them before it ends a job; Lightning and submitit handle them),
SIGTERM and SIGINT to torchrun. glibc keeps the first realtime signals and libraries count from either end; seven is in
between.
"""
_HEADER = re.compile(r"# process (\d+)(, flight recorder)?\n")
_POLL_S, _SETTLED_S, _LONGEST_S = 0.05, 0.3, 5.0
_FLIGHT_S = 10.0
"""The ranks look for a request once a second, on a machine that may be busy."""


def stacks_name(rank: int) -> str:
    """Return the name of the file with a rank's stacks."""
    return f"rank{rank}.stacks"


def flight_name(rank: int) -> str:
    """Return the name of the file with a rank's latest collectives."""
    return f"rank{rank}.flight.json"


def flight_request() -> str:
    """Return the name of the file whose change asks the ranks for their latest collectives."""
    return "flight.request"


def stacks_header(process: int, flight_recorder: bool = False) -> str:
    """Return the first line of a file of stacks: which process writes its stacks there when it is signaled.

    Args:
        flight_recorder: whether it also answers :func:`flight_request`.
    """
    return f"# process {process}{', flight recorder' if flight_recorder else ''}\n"


def ask_ranks(folder: Path, processes: Collection[int]) -> None:
    """Make the ranks of this machine write their stacks and latest collectives; return then, or after 15 s.

    Args:
        folder: the run's folder while it is recorded.
        processes: ids of the processes that may be signaled, the descendants of torchrun: a number in a file may by now
            be another program's, which the signal would end.
    """
    flights = {path for path in folder.glob("rank*.stacks") if _answers_requests(path, processes)}
    flights = {path.with_suffix(".flight.json") for path in flights}
    for path in flights:
        path.unlink(missing_ok=True)
    (folder / flight_request()).write_text(str(time.time_ns()), encoding="utf-8")
    sizes = {path: path.stat().st_size for path in folder.glob("rank*.stacks")}  # before any rank answers
    _wait_for_stacks({path: size for path, size in sizes.items() if _signal(path, processes)})
    deadline = time.monotonic() + _FLIGHT_S
    while not all(path.exists() for path in flights) and time.monotonic() < deadline:
        time.sleep(_POLL_S)


def _wait_for_stacks(asked: Mapping[Path, int]) -> None:
    """Wait until all files have grown beyond these sizes and grow no more."""
    deadline = time.monotonic() + _LONGEST_S
    sizes, settled = dict(asked), time.monotonic() + _SETTLED_S
    while asked and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        now = {path: path.stat().st_size for path in asked}
        if now != sizes:
            sizes, settled = now, time.monotonic() + _SETTLED_S
        if all(now[path] > before for path, before in asked.items()) and time.monotonic() > settled:
            return


def _header(path: Path, processes: Collection[int]) -> re.Match[str] | None:
    """Return the first line of a file of stacks, if it names one of these processes."""
    header = _HEADER.match(path.read_text(encoding="utf-8", errors="replace"))
    return header if header is not None and int(header[1]) in processes else None


def _answers_requests(path: Path, processes: Collection[int]) -> bool:
    header = _header(path, processes)
    return header is not None and header[2] is not None


def _signal(path: Path, processes: Collection[int]) -> bool:
    """Signal the process that a file of stacks names; return whether that was possible."""
    header = _header(path, processes)
    if header is None or STACKS_SIGNAL is None:
        return False
    with suppress(OSError):
        os.kill(int(header[1]), STACKS_SIGNAL)
        return True
    return False


@dataclass(frozen=True, slots=True)
class _State:
    """Where a rank is: the same for ranks that wait together."""

    place: Place | None
    step: int | None

    def text(self) -> str:
        step = "" if self.step is None else f"after step {self.step}"
        if self.place is None:
            return f"left no stack ({', '.join(filter(None, ('ended, or stuck in the system', step)))})"
        where = ", ".join(filter(None, (self.place.location, step)))
        return f"{self.place.doing} ({where})"


def describe_hang(folder: Path, last_steps: Mapping[int, int | None], seconds: float) -> str:
    """Describe where the ranks are, from what :func:`ask_ranks` made them write, and which one has fewer collectives.

    Args:
        folder: the run's folder while it is recorded.
        last_steps: the last step that each rank has ended, by rank; None if it has ended none.
        seconds: how long no rank has made progress.
    """
    groups: dict[_State, list[int]] = {}
    for rank, step in sorted(last_steps.items()):
        groups.setdefault(_State(_place(folder / stacks_name(rank)), step), []).append(rank)
    # Ranks that wait for others first, whom they wait for last.
    ordered = sorted(groups.items(), key=lambda item: (item[0].place is None, not _waits(item[0].place), item[1]))
    clauses = [f"{_ranks(ranks)} {_verb(state.text(), len(ranks))}" for state, ranks in ordered]
    text = f"No progress for {duration(seconds * 1e9)}: {'; '.join(clauses)}."
    behind = _behind(folder, last_steps)
    return sanitize(f"{text} {behind}".strip())


def _place(path: Path) -> Place | None:
    try:
        return place_of(main_thread(path.read_text(encoding="utf-8", errors="replace")))
    except OSError:
        return None


def _waits(place: Place | None) -> bool:
    return place is not None and place.waits


_PLURAL = {"waits": "wait", "is": "are", "writes": "write"}


def _verb(text: str, ranks: int) -> str:
    """Turn ``waits in …`` into ``wait in …`` for several ranks."""
    first, _, rest = text.partition(" ")
    return text if ranks == 1 else f"{_PLURAL.get(first, first)} {rest}"


def _behind(folder: Path, ranks: Iterable[int]) -> str:
    """Describe which ranks have begun fewer collectives of a group than others; empty if unknown."""
    counts: dict[str, dict[int, tuple[int, str]]] = {}
    for rank in ranks:
        for group, last in _last_collectives(folder / flight_name(rank)).items():
            counts.setdefault(group, {})[rank] = last
    for group, lasts in sorted(counts.items()):
        most = max(lasts.values())
        fewer = sorted(rank for rank, last in lasts.items() if last[0] < most[0])
        ahead = sorted(rank for rank, last in lasts.items() if last[0] == most[0])
        if fewer:
            return (
                f"In group {group}, {_ranks(ahead)} began collective {most[0]} ({most[1]}), {_ranks(fewer)} only "
                f"{min(lasts[rank][0] for rank in fewer)}."
            )
    return ""


def _last_collectives(path: Path) -> dict[str, tuple[int, str]]:
    """Return the number and the name of the last collective of each process group, from a rank's flight recorder."""
    lasts: dict[str, tuple[int, str]] = {}
    with suppress(OSError, ValueError):
        content = json.loads(path.read_text(encoding="utf-8"))
        for entry in content.get("entries", []) if isinstance(content, dict) else []:
            group, number = _group(entry), entry.get("collective_seq_id")
            # Sends and receives have numbers of their own, which differ between ranks.
            if isinstance(number, int) and not entry.get("is_p2p") and number >= lasts.get(group, (0, ""))[0]:
                lasts[group] = number, str(entry.get("profiling_name", "")).rpartition(":")[2]
    return lasts


def _group(entry: dict[str, Any]) -> str:
    named = entry.get("process_group")
    return " ".join(map(str, dict.fromkeys(named))) if isinstance(named, list | tuple) else str(entry.get("pg_id"))


def _ranks(numbers: list[int]) -> str:
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {', '.join(map(str, numbers))}"
