"""Make the writes of a process to a recording's folder fail, as on a full disk; ``forking`` installs it everywhere."""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable
from typing import Any

VARIABLE = "DPTRACE_TEST_FAULT"
_FOLDERS = ("/.t.recording/", "/t/", "/t.failed/")
_ROLES = {"launcher": "dptrace", "torchrun": "torchrun_agent", "rank": "runner"}


def setting(role: str, error: str, since: str) -> dict[str, str]:
    """Return the environment in which writes fail.

    Args:
        role: ``launcher``, ``torchrun`` or ``rank``; ``all`` for each of them.
        error: the name of the error, such as ``ENOSPC``.
        since: a path, relative to the working directory, that exists from the first failure on; ``.`` from the start.
    """
    return {VARIABLE: f"{role} {error} {since}"}


_fault: list[tuple[int, str]] = []
"""The error of this process, and since when; forks inherit it, and replace it by their own."""


def install(program: str) -> None:
    """Make writes of this process fail as its environment says.

    Args:
        program: the module or script that it runs; of ``start.py``, the module that this starts.
    """
    text = os.environ.get(VARIABLE, "")
    role, name, since = text.split() if text else ("", "", "")
    if text and not _wrapped:
        _wrap_all()
    concerned = bool(text) and (role == "all" or program.endswith(_ROLES[role]))
    _fault[:] = [(getattr(errno, name), os.path.abspath(since))] if concerned else []


_wrapped: list[str] = []


def _wrap_all() -> None:
    def has_mode(*words: Any) -> bool:
        return bool(words) and isinstance(words[0], str) and bool(set(words[0]) & set("wax+"))

    for module in (builtins, io):
        _wrap(module, "open", has_mode)
    _wrap(os, "open", lambda flags, *_: bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)))
    for name in ("write", "pwrite", "mkdir", "replace", "rename"):
        _wrap(os, name)


def _wrap(module: Any, name: str, writes: Callable[..., bool] = lambda *words: True) -> None:
    original = getattr(module, name)
    _wrapped.append(name)

    def checked(path: Any, *words: Any, **keywords: Any) -> Any:
        if _fault and writes(*words, *keywords.values()):
            _check(path, *_fault[0])
        return original(path, *words, **keywords)

    setattr(module, name, checked)


def _check(path: Any, number: int, since: str) -> None:
    place = os.readlink(f"/proc/self/fd/{path}") if isinstance(path, int) else os.path.abspath(os.fsdecode(path))
    if any(folder in f"{place}/" for folder in _FOLDERS) and os.path.exists(since):
        raise OSError(number, os.strerror(number), place)
