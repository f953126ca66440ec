"""Tables of a memory snapshot."""

from __future__ import annotations

import io

import msgspec
from rich.console import Console

from dptrace.analysis.memory.snapshot import device_snapshots
from dptrace.readers.memory_snapshot import Snapshot
from dptrace.viewers.terminal.tables.snapshot import print_snapshot
from tests.support.snapshot_files import SNAPSHOT


def test_each_device_is_printed() -> None:
    """Use of the reserved memory, the blocks with where they were allocated, the history; names are made safe."""
    out = io.StringIO()
    devices = device_snapshots(msgspec.convert(SNAPSHOT, Snapshot))
    print_snapshot("a\x1b[31m.json", devices, Console(file=out, width=120))
    text = out.getvalue()

    for part in ("GPU 0", "GPU 1", "6.1 kB", "train.py:12 forward", "oom", "3.0 kB"):
        assert part in text
    assert "\x1b" not in text
