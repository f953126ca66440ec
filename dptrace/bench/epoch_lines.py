"""The lines that a training prints while it runs: one for each epoch, as it ends."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any, BinaryIO, TextIO

from dptrace.record.run_folder.messages import EPOCH

__all__ = ["EpochLines"]

_PIECE = 1 << 16


class EpochLines:
    """The lines of epochs in a file that another process writes.

    Args:
        tell: called with the figures of each epoch, as :func:`dptrace.record.epochs.results.epoch_line` returns them.
    """

    def __init__(self, file: TextIO | BinaryIO, tell: Callable[[dict[str, Any]], None]) -> None:
        self._file, self._tell, self._position, self._rest = file, tell, 0, b""

    def read(self) -> None:
        """Report what has been written since the last call."""
        # Reading at a position leaves that of the file, which the writer shares, as it is.
        while piece := os.pread(self._file.fileno(), _PIECE, self._position):
            self._position += len(piece)
            *lines, self._rest = (self._rest + piece).split(b"\n")
            for line in lines:
                self._tell_line(line.decode("utf-8", "replace"))

    def _tell_line(self, line: str) -> None:
        if not line.startswith(EPOCH):
            return
        try:
            epoch = json.loads(line.removeprefix(EPOCH))
        except ValueError:
            return
        if isinstance(epoch, dict):
            self._tell(epoch)
