"""Windows of a recording: a schedule that repeats writes a file for each window of each process."""

from __future__ import annotations

from msgspec.structs import replace

from dptrace.core.units import plural
from dptrace.errors import DptraceError, UsageError
from dptrace.readers.discovery import Sources
from dptrace.readers.source import file_name
from dptrace.readers.windows import windows_of


def with_window(sources: Sources, window: int | None) -> Sources:
    """Return the sources of one window, by its number from 1 in the order of time; all where each process has one.

    Raises:
        UsageError: there is no window of this number.
        DptraceError: there are several windows, and none is chosen.
    """
    windows = windows_of([file.address for file in sources.files])
    count = len(windows)
    if window is None and count == 1:
        return sources
    if window is None:
        names = " and ".join(file_name(own[0]) for own in windows[:2])
        raise DptraceError(
            f"{plural(count, 'window')} of each process, such as {names}: choose one, --window 1 to --window {count}, "
            "or list them as runs with dptrace history."
        )
    if not 1 <= window <= count:
        raise UsageError(f"--window {window}: there {'is 1 window' if count == 1 else f'are {count} windows'}, from 1.")
    own = set(windows[window - 1])
    kept = tuple(file for file in sources.files if file.address in own)
    return replace(sources, files=kept, named=sources.named & {*kept})
