"""The user's folders, and a temporary one in their place where there is no home, as in a container."""

from __future__ import annotations

import os
import stat
from functools import cache
from pathlib import Path

__all__ = ["cache_folder", "ensure_home"]


def ensure_home() -> None:
    """Set ``HOME`` where the user has neither that variable nor an entry in passwd, as a container's may have none.

    Bokeh, HTA and Dask look for their settings in the home folder as soon as they are imported, and fail without one.
    """
    if os.path.expanduser("~") == "~":
        os.environ["HOME"] = str(_temporary_folder() or os.sep)


def cache_folder() -> Path:
    """Return the cache folder, which the environment variable ``DPTRACE_CACHE`` can set.

    It is the user's; or a temporary one where that can't be written, as below the home ``/`` of a container's user.
    """
    if named := os.environ.get("DPTRACE_CACHE"):
        return Path(named)
    from platformdirs import user_cache_path

    try:
        users = Path(user_cache_path("dptrace", appauthor=False))
        if users.is_absolute() and _writable(users):
            return users
    except RuntimeError:  # no home folder
        pass
    return (_temporary_folder() or Path(os.sep)) / ".cache" / "dptrace"


@cache  # asked for each trace
def _writable(folder: Path) -> bool:
    """Return whether a folder can be written or created."""
    # os.path, since Path.exists raises an error below a folder that this user may not enter.
    existing = next((path for path in (folder, *folder.parents) if os.path.exists(path)), folder)
    return os.access(existing, os.W_OK | os.X_OK)


def _temporary_folder() -> Path | None:
    """Return a folder that is this user's alone, the same in each process; None where there is none.

    Everyone may create a folder of this name first: then it is not used, since its files would be trusted.
    """
    if not hasattr(os, "getuid"):
        return None
    import tempfile  # which imports what nearly no command needs

    try:
        folder = Path(tempfile.gettempdir(), f"dptrace-{os.getuid()}")
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
    return folder if own else None
