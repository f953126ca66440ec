"""Windows of a recording: a schedule that repeats writes a file for each window of each process."""

from __future__ import annotations

from msgspec.structs import replace

from dptrace.errors import UsageError
from dptrace.readers.discovery import Sources
from dptrace.readers.windows import windows_of_run


def with_window(sources: Sources, window: int | None) -> Sources:
    """Return the sources of one window, by its number from 1 in the order of time; all, with their windows, by default.

    Raises:
        UsageError: there is no window of this number.
    """
    windows = windows_of_run(sources.files)
    count = len(windows)
    if window is None:
        return sources if count == 1 else replace(sources, windows=tuple(map(tuple, windows)))
    if not 1 <= window <= count:
        there = "there is 1 window of each process" if count == 1 else f"choose from 1 to {count}"
        raise UsageError(f"--window {window}: {there}, in the order of time.")
    own = set(windows[window - 1])
    kept = tuple(file for file in sources.files if file.address in own)
    return replace(sources, files=kept, named=sources.named & {*kept})
