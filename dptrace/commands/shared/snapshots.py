"""Memory snapshots of torch's allocator, where a command gets them instead of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dptrace.commands.shared.output import emit, json_text, print_tables
from dptrace.core.inputs import note_inputs

if TYPE_CHECKING:
    from rich.console import Console

    from dptrace.readers.sources.source import Source

__all__ = ["print_snapshots", "snapshots_in"]


def snapshots_in(paths: tuple[str, ...]) -> list[Source]:
    """Return the files if they are memory snapshots, judging by the first; else none."""
    from dptrace.readers.memory_snapshot import is_snapshot
    from dptrace.readers.sources.source import Source

    if not paths or not all(Path(path).is_file() for path in paths):
        return []
    files = [Source.of(path) for path in paths]
    return files if is_snapshot(files[0]) else []


def print_snapshots(files: list[Source], as_json: bool, every: bool, output: Path | None) -> None:
    """Print the snapshots as tables or JSON.

    Raises:
        TraceError: a file is a pickle, damaged, or no snapshot.
    """
    from dptrace.analysis.memory.snapshot import device_snapshots
    from dptrace.readers.memory_snapshot import read_snapshot
    from dptrace.viewers.terminal.tables.snapshot import print_snapshot

    note_inputs([Path(file.address) for file in files])
    found = [(file.address, device_snapshots(read_snapshot(file))) for file in files]
    if as_json:
        snapshots = [{"path": path, "devices": [device.to_dict() for device in devices]} for path, devices in found]
        emit(json_text({"schema": 1, "snapshots": snapshots}), output)
        return

    def show(console: Console) -> None:
        for path, devices in found:
            print_snapshot(path, devices, console, every)

    print_tables(show, output)
