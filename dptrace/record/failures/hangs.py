"""Find out where ranks are that make no progress: each one's line, and who has begun fewer collectives than others.

A rank answers in two ways, also while it is stuck inside C++ code: at a signal, faulthandler writes its stacks without
Python; a thread writes torch's latest collectives, as code that waits for peers or a GPU lets other threads run.
"""

from __future__ import annotations

import faulthandler
import json
import linecache
import os
import pickle
import re
import signal
import sysconfig
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from dptrace.core.units import duration, sanitize
from dptrace.record.run_folder.messages import LauncherSettings, rank, write_json

__all__ = ["STACKS_SIGNAL", "ask_ranks", "describe_hang", "install", "install_stack_dump", "latest_collectives"]

STACKS_SIGNAL: int | None = int(signal.SIGRTMIN) + 7 if hasattr(signal, "SIGRTMIN") else None
"""The signal at which a rank writes its stacks; None where the system has no realtime signals. SIGUSR1 and SIGUSR2 are
the scripts' (Slurm, Lightning), SIGTERM and SIGINT torchrun's; glibc and libraries count realtime ones from either end.
"""
_POLL_S = 1.0
_LONGEST_S = 10.0
"""How long the ranks may take to answer, on a machine that may be busy."""
_REQUEST = "stacks.request"
_HEADER = re.compile(r"# process (\d+)\n")
_THREAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+(?: \[.*\])? \(most recent call first\):")
"""The start of a thread's stack; Python 3.14 adds its name."""
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_OWN = Path(__file__).resolve().parents[2]
_BETWEEN = ("wrapper", "decorate_context", "_wrapped_call_impl", "_call_impl")  # the user's line and what it calls
_DUMPS = ("_dump_nccl_trace_json", "_dump_fr_trace_json", "_dump_nccl_trace", "_dump_fr_trace")
"""torch's functions, in order: NCCL's own in 2.4 (pickled) and from 2.5 on, those of all backends from 2.8 on."""

_file: TextIO | None = None
"""Stays open: the handler writes to its descriptor."""


def install_stack_dump() -> None:
    """Let a rank that ``dptrace record`` started answer; without it, a hang is described by the steps alone."""
    settings = LauncherSettings.from_environment()
    if settings is not None:
        with suppress(OSError):
            install(Path(settings.folder), rank())


def install(folder: Path, number: int) -> bool:
    """Make this process, of this rank, answer the launcher in a folder.

    Return whether that works: not where the system has no such signal, or the script itself handles it.
    """
    global _file
    if STACKS_SIGNAL is None or signal.getsignal(STACKS_SIGNAL) is not signal.SIG_DFL:
        return False
    previous, _file = _file, (folder / f"rank{number}.stacks").open("w", encoding="utf-8")
    # First the handler, then the header that invites a signal, whose default action is to end the process.
    faulthandler.register(STACKS_SIGNAL, file=_file, all_threads=True, chain=False)
    _file.write(f"# process {os.getpid()}\n")
    _file.flush()
    if previous is not None:
        previous.close()
    threading.Thread(target=_answer, args=(folder, number), name="dptrace_stacks", daemon=True).start()
    return True


def _answer(folder: Path, number: int) -> None:
    """Write this rank's latest collectives each time that the launcher asks."""
    answered = 0
    while True:
        time.sleep(_POLL_S)
        with suppress(OSError):
            asked = (folder / _REQUEST).stat().st_mtime_ns
            if asked != answered:
                answered = asked
                write_json(folder / f"rank{number}.collectives.json", latest_collectives())


def latest_collectives() -> dict[str, tuple[int, str]]:
    """Return number and name of the last collective that this process has begun in each group, as torch recorded it.

    A torch before 2.8 does not record gloo's at all, and one before 2.5 NCCL's only if TORCH_NCCL_TRACE_BUFFER_SIZE was
    set before the process group was made.
    """
    import torch

    library = getattr(torch._C, "_distributed_c10d", None)
    for dump in filter(None, (getattr(library, name, None) for name in _DUMPS)):
        with suppress(Exception):  # private functions of torch, in a process that is stuck
            content = dump()
            # A pickle of plain values, made a moment ago by torch in this very process.
            found = json.loads(content) if content[:1] == b"{" else pickle.loads(content)
            if found.get("entries"):
                return _lasts(found["entries"])
    return {}


def _lasts(entries: list[dict[str, Any]]) -> dict[str, tuple[int, str]]:
    lasts: dict[str, tuple[int, str]] = {}
    for entry in entries:
        named = entry.get("process_group") or [entry.get("pg_id")]
        group, number = " ".join(map(str, dict.fromkeys(named))), entry.get("collective_seq_id")
        # Sends and receives have numbers of their own, which differ between ranks.
        if isinstance(number, int) and not entry.get("is_p2p") and number >= lasts.get(group, (0, ""))[0]:
            lasts[group] = number, str(entry.get("profiling_name", "")).rpartition(":")[2]
    return lasts


def ask_ranks(folder: Path, processes: Collection[int]) -> None:
    """Make the ranks of this machine write their stacks and latest collectives; return then, or after 10 s.

    Args:
        processes: ids of the processes that may be signaled, the descendants of torchrun: a number in a file may by now
            be another program's, which the signal would end.
    """
    answers = []
    for path in folder.glob("rank*.stacks"):
        header = _HEADER.match(path.read_text(encoding="utf-8", errors="replace"))
        if header is not None and int(header[1]) in processes and STACKS_SIGNAL is not None:
            answers.append(path.with_suffix(".collectives.json"))
            answers[-1].unlink(missing_ok=True)
            with suppress(OSError):
                os.kill(int(header[1]), STACKS_SIGNAL)
    (folder / _REQUEST).write_text(str(time.time_ns()), encoding="utf-8")
    deadline = time.monotonic() + _LONGEST_S
    while not all(path.exists() for path in answers) and time.monotonic() < deadline:
        time.sleep(0.05)


def describe_hang(folder: Path, last_steps: Mapping[int, int | None], seconds: float) -> str:
    """Describe where the ranks are, from what :func:`ask_ranks` made them write, and which one has fewer collectives.

    Args:
        last_steps: the last step that each rank has ended, by rank; None if it has ended none.
        seconds: how long no rank has made progress.
    """
    places: dict[str, list[int]] = {}
    counts: dict[str, dict[int, tuple[int, str]]] = {}
    for number, step in sorted(last_steps.items()):
        place = _place(folder / f"rank{number}.stacks") + ("" if step is None else f", after step {step}")
        places.setdefault(place, []).append(number)
        with suppress(OSError, ValueError):
            found = json.loads((folder / f"rank{number}.collectives.json").read_text(encoding="utf-8"))
            for group, last in found.items():
                counts.setdefault(group, {})[number] = tuple(last)
    clauses = "; ".join(f"{_ranks(ranks)} at {place}" for place, ranks in places.items())
    behind = "".join(_behind(group, lasts) for group, lasts in sorted(counts.items()))
    return sanitize(f"No progress for {duration(seconds * 1e9)}: {clauses}.{behind}")


def _behind(group: str, lasts: Mapping[int, tuple[int, str]]) -> str:
    """Return which ranks have begun fewer collectives of a group than others; empty if none."""
    most = max(lasts.values())
    fewer = [number for number, last in lasts.items() if last[0] < most[0]]
    if not fewer:
        return ""
    ahead = [number for number, last in lasts.items() if last[0] == most[0]]
    least = min(lasts.values())[0]
    return f" In group {group}, {_ranks(ahead)} began collective {most[0]} ({most[1]}), {_ranks(fewer)} only {least}."


def _ranks(numbers: list[int]) -> str:
    return f"{'rank' if len(numbers) == 1 else 'ranks'} {', '.join(map(str, numbers))}"


def _place(path: Path) -> str:
    """Return the user's line in the main thread's latest stack, and what it calls; a dump lists that thread last."""
    stack: list[tuple[str, int, str]] = []
    with suppress(OSError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if _THREAD.match(line):
                stack = []
            elif found := _FRAME.match(line):
                stack.append((found[1], int(found[2]), found[3]))
    if not stack:
        return "an unknown line (no stack: ended, or stuck in the system)"
    index = min(range(len(stack)), key=lambda number: (_distance(stack[number][0]), number))
    file, number, function = stack[index]
    calls = [name for _, _, name in reversed(stack[:index]) if name not in _BETWEEN]
    what = f"in {calls[0]}" if calls else f"{function}: {linecache.getline(file, number).strip()[:60]}"
    return f"{Path(file).name}:{number} ({what})"


def _distance(file: str) -> int:
    """Return how far a file is from the user's code: 0 for a script or trainer, 1 for a package, else 2."""
    if re.search(r"[/\\](?:site|dist)-packages[/\\]", file):
        return 2 if "-packages/torch/" in file.replace("\\", "/") else 1
    is_own = Path(file).is_relative_to(_OWN) and not Path(file).is_relative_to(_OWN / "trainers")
    return 2 if is_own or file.startswith(("<", sysconfig.get_path("stdlib"))) else 0
