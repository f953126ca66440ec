"""The exceptions with which the standard library reports damaged compressed data and archives."""

from __future__ import annotations

import importlib
import tarfile
import zipfile
import zlib
from contextlib import suppress

__all__ = ["ARCHIVE_DAMAGE", "DAMAGE"]


def _damage() -> tuple[type[Exception], ...]:
    found: list[type[Exception]] = [EOFError, OSError, zlib.error, zipfile.BadZipFile, tarfile.TarError]
    # Python may be built without lzma, and isal is installed for the common machines only.
    for module, name in (("lzma", "LZMAError"), ("isal.isal_zlib", "error")):
        with suppress(ImportError):
            found.append(getattr(importlib.import_module(module), name))
    return tuple(found)


DAMAGE = _damage()
"""Raised for damaged compressed data, in an archive or not."""
ARCHIVE_DAMAGE: tuple[type[Exception], ...] = (*DAMAGE, RuntimeError, ValueError)
"""Raised for a damaged archive, and for one of an unknown version or compression."""
