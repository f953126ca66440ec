"""How large the files of a run are, before they are read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dptrace.readers.source import Source

__all__ = ["is_small"]

_MAX_BYTES = 40_000_000
_COMPRESSED = 10
"""How many bytes of JSON a compressed byte holds, about."""
_COMPRESSIONS = (".gz", ".zst", ".bz2", ".xz", ".zip", ".tgz")


def is_small(files: Iterable[Source]) -> bool:
    """Return whether files hold less than 40 MB together, some 200,000 events: gains take a second at most.

    Files that are not on this machine, and pipes, are not small.
    """
    total = 0
    for path in dict.fromkeys(source.container for source in files if not source.single_pass):
        try:
            size = Path(path).stat().st_size
        except OSError:
            return False
        total += size * (_COMPRESSED if path.lower().endswith(_COMPRESSIONS) else 1)
    return all(not source.single_pass and not source.remote for source in files) and total <= _MAX_BYTES
