"""The folder of a watch."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from dptrace.errors import UsageError


def check_folder(folder: Path, force: bool | None = None) -> None:
    """Check that a watch may write here; with *force*, remove the files of an earlier one.

    Args:
        force: None for a watch that Python code begins, to which no option can be given.

    Raises:
        UsageError: it may not.
    """
    if not folder.exists():
        return
    other = "Name another folder." if force is None else "Choose another -o."
    if not folder.is_dir():
        raise UsageError(f"{folder} exists and is not a folder. {other}")
    names = ("rank*.steps", "rank*.calls", "rank*.ended", "request-*.json", "capture*.json", "summary.json")
    own = [path for name in (*names, "trends.npz", "watch.html") for path in folder.glob(name)]
    kept = own_folders(folder)
    if (own or kept) and not force:
        way = "Remove it, or name another folder" if force is None else "Replace it with --force, or choose another -o"
        raise UsageError(f"{folder} already contains a watch. {way}.")
    if left := next(iter(sorted({*folder.iterdir()} - {*own, *kept})), None):
        raise UsageError(f"{folder} contains {left.name}, which is not of dptrace watch. {other}")
    for path in own:
        path.unlink(missing_ok=True)
    for path in kept:
        shutil.rmtree(path, ignore_errors=True)


def own_folders(folder: Path) -> list[Path]:
    """Return the captures in the folder of a watch, and what its launcher has left."""
    names = r"capture\d+(-failed)?|\.job\.recording|job\.failed"
    return [path for path in folder.iterdir() if re.fullmatch(names, path.name)]
