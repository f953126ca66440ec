"""Memory snapshots of torch's allocator, where a command gets them instead of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dptrace.commands.shared.answer import Answer
from dptrace.core.files import note_inputs

if TYPE_CHECKING:
    from rich.console import Console

    from dptrace.readers.source import Source

__all__ = ["snapshot_answer", "snapshots_in"]


def snapshots_in(paths: tuple[str, ...]) -> list[Source]:
    """Return the files if they are memory snapshots, judging by the first; else none."""
    from dptrace.readers.memory_snapshot import is_snapshot
    from dptrace.readers.source import Source

    if not paths or not all(Path(path).is_file() for path in paths):
        return []
    files = [Source.of(path) for path in paths]
    return files if is_snapshot(files[0]) else []


def snapshot_answer(files: list[Source], every: bool) -> Answer:
    """Return the snapshots as tables and JSON.

    Raises:
        TraceError: a file is a pickle, damaged, or no snapshot.
    """
    from dptrace.analysis.memory.snapshot import device_snapshots
    from dptrace.readers.memory_snapshot import read_snapshot
    from dptrace.viewers.terminal.tables.snapshot import print_snapshot

    note_inputs([Path(file.address) for file in files])
    found = [(file.address, device_snapshots(read_snapshot(file))) for file in files]

    def data() -> object:
        snapshots = [{"path": path, "devices": [device.to_dict() for device in devices]} for path, devices in found]
        return {"schema": 1, "snapshots": snapshots}

    def show(console: Console) -> None:
        for path, devices in found:
            print_snapshot(path, devices, console, every)

    return Answer(show, data)
