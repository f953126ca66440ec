"""One file of a checkpoint: written atomically, verified, and read without running any code in it."""

from __future__ import annotations

import os
import pickle
import re
import stat
import warnings
import zipfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from dptrace.errors import DptraceError

__all__ = ["SCHEMA", "read_checkpoint", "write_checkpoint"]

SCHEMA = 1
_MEMBER = re.compile(
    r"[^/]+/(data\.pkl|version|byteorder|\.format_version|\.storage_alignment|data/\d+|\.data/serialization_id)"
)
"""What torch.save writes. TorchScript has more, and torch before 2.6 ran it even with weights_only."""
_LARGEST_INDEX = 1 << 26
"""Bytes of data.pkl, the names and shapes of the tensors; the numbers are in other members."""
_DEEPEST = 8
_SETTING = (str, int, float, bool, type(None))
"""Types of a training's settings; tensors, for example, can't be compared as these are."""


def write_checkpoint(path: Path, step: int, settings: dict[str, Any], content: dict[str, Any]) -> None:
    """Write a file atomically, also with respect to a crash of the machine.

    Raises:
        DptraceError: it cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            torch.save({"schema": SCHEMA, "step": step, "facts": settings, **content}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:
        with suppress(OSError):
            temporary.unlink()
        raise DptraceError(f"{path}: the checkpoint cannot be written: {error}.") from None


def read_checkpoint(path: Path, step: int, device: torch.device) -> dict[str, Any]:
    """Return what :func:`write_checkpoint` has written for a step; executes nothing that is in the file.

    Raises:
        Exception: it is damaged or from elsewhere; such files fail in many ways.
    """
    # Opening a pipe would wait for a writer forever.
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("it is not a file")
    _check_intact(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on odd files, which are then refused
            content = torch.load(path, map_location=device, weights_only=True)
    except pickle.UnpicklingError:
        # torch's own message recommends to read the file in the way that runs what is in it.
        raise ValueError("it holds other things than tensors, numbers and texts, which might run code") from None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA or content.get("step") != step:
        raise ValueError(f"it is not a checkpoint of step {step} of dptrace")
    settings = content.get("facts")
    if not isinstance(settings, dict) or not all(isinstance(value, _SETTING) for value in settings.values()):
        raise ValueError("it does not say which training it belongs to")
    _check_plain(content)
    return content


def _check_intact(path: Path) -> None:
    """Check the parts of a file and the checksum of each; torch reads changed numbers without an error."""
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if not _MEMBER.fullmatch(entry.filename) or entry.compress_type != zipfile.ZIP_STORED:
                raise ValueError("torch.save did not write it")
            if entry.filename.endswith("/data.pkl") and entry.file_size > _LARGEST_INDEX:
                raise ValueError("its index is too large")
        if broken := archive.testzip():
            raise ValueError(f"{broken} is damaged")


def _check_plain(value: Any, depth: int = 0) -> None:
    """Check that a value consists of numbers, texts and plain tensors: the other types that torch reads do things."""
    if depth > _DEEPEST:
        raise ValueError("it is nested too deeply")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, (str, int)):
                raise ValueError("it has a key that is neither a text nor a number")
            _check_plain(item, depth + 1)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_plain(item, depth + 1)
    elif value is not None and type(value) not in (torch.Tensor, str, int, float, bool):
        raise ValueError(f"it holds a {type(value).__name__}")
