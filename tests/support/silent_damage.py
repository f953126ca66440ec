"""Damage that changes figures without a note: the worst that a reader can do."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import Any

import msgspec

import dptrace


def figures(path: Path) -> Any:
    """Return everything that ``dptrace analyze --json`` prints; or the error."""
    try:
        return dptrace.open(path, cache=False, jobs=1).to_dict()
    except dptrace.DptraceError as error:
        return {"error": str(error)}


def is_sound(data: bytes) -> bool:
    """Return whether a file is JSON, so that no reader can tell a change in it from the truth."""
    try:
        msgspec.json.decode(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)
    except (msgspec.MsgspecError, ValueError, RecursionError, OSError, EOFError, zlib.error):
        return False
    return True


def check_silence(path: Path, before: bytes) -> None:
    """Check that a damaged file which was read without a note has the figures of the file *before* the damage."""
    if is_sound(path.read_bytes()):
        return
    after = figures(path)
    path.write_bytes(before)
    expected = figures(path)
    assert expected == after, "the figures have changed without a note"
