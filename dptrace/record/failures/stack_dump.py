"""Let the launcher ask a rank where it is: its stacks by a signal, its latest collectives by a file.

The rank's part; ``hangs`` asks and reads. Both work while the rank is stuck inside C++ code: the signal's handler is C
and needs no Python, and code that waits for peers or a GPU lets other threads run.
"""

from __future__ import annotations

import faulthandler
import json
import os
import pickle
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from dptrace.record.failures.hangs import STACKS_SIGNAL, flight_name, flight_request, stacks_header, stacks_name
from dptrace.record.run_folder.messages import LauncherSettings, rank

__all__ = ["dump_flight_recorder", "install", "install_stack_dump"]

_POLL_S = 1.0
_DUMPS = ("_dump_nccl_trace_json", "_dump_fr_trace_json", "_dump_nccl_trace", "_dump_fr_trace")
"""torch's functions, in order: NCCL's own in 2.4 (pickled) and from 2.5 on, those of all backends from 2.8 on."""

_file: TextIO | None = None
"""Stays open: the handler writes to its descriptor."""


def install(folder: Path, number: int, flight_recorder: bool = False) -> bool:
    """Make this process write the stacks of its threads to ``rankN.stacks`` when the launcher signals it.

    Return whether that works: not where the system has no such signal, or the script itself handles it. A rank that is
    restarted replaces what the previous process left.

    Args:
        folder: where the files are.
        number: this process's rank.
        flight_recorder: also start a thread that writes torch's latest collectives to ``rankN.flight.json`` when the
            launcher asks. It looks for the request once a second.
    """
    global _file
    if STACKS_SIGNAL is None:
        return False
    import signal

    if signal.getsignal(STACKS_SIGNAL) is not signal.SIG_DFL:
        return False
    (folder / flight_name(number)).unlink(missing_ok=True)
    previous, _file = _file, (folder / stacks_name(number)).open("w", encoding="utf-8")
    # First the handler, then the header that invites a signal, whose default action is to end the process.
    faulthandler.register(STACKS_SIGNAL, file=_file, all_threads=True, chain=False)
    _file.write(stacks_header(os.getpid(), flight_recorder))
    _file.flush()
    if previous is not None:
        previous.close()
    if flight_recorder:
        _DumpThread(folder, number).start()
    return True


def install_stack_dump() -> None:
    """Install it in a rank that ``dptrace record`` started; without it, a hang is described by the steps alone."""
    settings = LauncherSettings.from_environment()
    if settings is not None:
        with suppress(OSError):
            install(Path(settings.folder), rank(), flight_recorder=True)


class _DumpThread(threading.Thread):
    """Writes torch's flight recorder to a file each time that the launcher asks."""

    def __init__(self, folder: Path, rank: int) -> None:
        super().__init__(name="dptrace_stacks", daemon=True)
        self._request, self._target, self._process = folder / flight_request(), folder / flight_name(rank), os.getpid()
        self._answered = 0

    def run(self) -> None:
        waiting = threading.Event()
        while not waiting.wait(_POLL_S):
            with suppress(OSError):
                asked = self._request.stat().st_mtime_ns
                if asked != self._answered:
                    self._answered = asked
                    dump_flight_recorder(self._target)


def dump_flight_recorder(target: Path) -> bool:
    """Write the latest collectives of this process, as torch's flight recorder keeps them, as JSON.

    Return whether there were any: a torch before 2.8 records gloo's not at all, and one before 2.5 NCCL's only if
    TORCH_NCCL_TRACE_BUFFER_SIZE was set before the process group was made.
    """
    import torch

    library = getattr(torch._C, "_distributed_c10d", None)
    for name in _DUMPS:
        content = _dumped(getattr(library, name, None))
        if content.get("entries"):
            temporary = target.with_name(f".{target.name}.part")
            temporary.write_text(json.dumps(content, default=str), encoding="utf-8")
            temporary.replace(target)
            return True
    return False


def _dumped(dump: Callable[[], bytes] | None) -> dict[str, Any]:
    if dump is None:
        return {}
    try:
        content = dump()
        # A pickle of plain values, made a moment ago by torch in this very process.
        found = json.loads(content) if content[:1] == b"{" else pickle.loads(content)
    except Exception:  # private functions of torch, in a process that is stuck
        return {}
    return found if isinstance(found, dict) else {}
