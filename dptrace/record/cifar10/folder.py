"""CIFAR-10 in a folder: its files found, checked and read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.core.text import sanitize
from dptrace.errors import DptraceError, UsageError
from dptrace.record.cifar10.safe_pickle import PickledArray, read_pickle

__all__ = ["CLASSES", "PIXELS", "Images", "read_images"]

CLASSES = 10
PIXELS = 3 * 32 * 32
"""Bytes of an image: red, green and blue, each row by row."""
_TRAINING = tuple(f"data_batch_{number}" for number in range(1, 6))
_VALIDATION = ("test_batch",)
_LARGEST = 1 << 28
"""Bytes of a file; CIFAR-10's have 31 million."""
_SUBFOLDERS = (".", "cifar-10-batches-bin", "cifar-10-batches-py")
_ADVICE = (
    "Unpack cifar-10-binary.tar.gz or cifar-10-python.tar.gz and pass its folder, or leave --data out to train on "
    "synthetic images."
)


class Images(msgspec.Struct, frozen=True):
    """Images and their classes."""

    pixels: NDArray[np.uint8]
    """(images, 3072)."""
    classes: NDArray[np.uint8]
    """(images): 0 to 9."""


def read_images(folder: str | Path, validation: bool = False) -> Images:
    """Read the training images, or those to validate on, from the folder or the subfolder that its archive makes.

    Raises:
        UsageError: the folder, or a file of it, is missing.
        DptraceError: a file is damaged, or not of CIFAR-10.
    """
    place, ending = _find(Path(folder))
    _check_names(place / "batches.meta")
    read = _binary if ending else _pickled
    batches = [read(place / f"{name}{ending}") for name in (_VALIDATION if validation else _TRAINING)]
    return Images(*(np.concatenate(parts) for parts in zip(*batches, strict=True)))


def _find(folder: Path) -> tuple[Path, str]:
    """Return where the files are, and what their names end in: ".bin" in the binary form."""
    if not folder.is_dir():
        raise UsageError(f"--data {folder}: not a folder. {_ADVICE}")
    for place in (folder / name for name in _SUBFOLDERS):
        for ending in (".bin", ""):
            missing = [name for name in (*_TRAINING, *_VALIDATION) if not (place / f"{name}{ending}").is_file()]
            if not missing:
                return place, ending
            if len(missing) <= len(_TRAINING):
                raise UsageError(f"--data: {place / missing[0]}{ending} is missing. {_ADVICE}")
    raise UsageError(f"--data {folder}: holds no files of CIFAR-10, such as data_batch_1. {_ADVICE}")


def _content(path: Path) -> bytes:
    try:
        if path.stat().st_size > _LARGEST:
            raise DptraceError(f"--data: {path} is too large for a file of CIFAR-10. {_ADVICE}")
        return path.read_bytes()
    except OSError as error:
        raise DptraceError(f"--data: {path} cannot be read: {error.strerror}.") from None


def _binary(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read a binary file: for each image a byte with its class, then its pixels."""
    content = np.frombuffer(_content(path), np.uint8)
    record = 1 + PIXELS
    if not len(content) or len(content) % record or content[::record].max() >= CLASSES:
        raise DptraceError(
            f"--data: {path} is not a binary file of CIFAR-10 ({record:,} bytes for each image). {_ADVICE}"
        )
    images = content.reshape(-1, record)
    return images[:, 1:], images[:, 0]


def _pickled(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read a file of the Python form: a dictionary with ``data`` and ``labels``."""
    batch = _dictionary(path)
    data, labels = batch.get("data"), batch.get("labels")
    if "fine_labels" in batch:
        raise DptraceError(f"--data: {path} is of CIFAR-100, which has 100 classes. {_ADVICE}")
    if not isinstance(data, PickledArray) or not data.is_bytes(-1, PIXELS) or not data.content:
        raise _foreign(path, f"its data are not images of {PIXELS:,} bytes")
    pixels = np.frombuffer(data.content, np.uint8).reshape(-1, PIXELS)
    right = isinstance(labels, list) and all(type(label) is int and 0 <= label < CLASSES for label in labels)
    if not isinstance(labels, list) or not right or len(labels) != len(pixels):
        raise _foreign(path, f"its labels are not a class from 0 to {CLASSES - 1} for each of {len(pixels):,} images")
    return pixels, np.array(labels, np.uint8)


def _check_names(path: Path) -> None:
    """Check that the classes' names, where there are any, are ten."""
    if path.is_file():
        names = _dictionary(path).get("label_names")
        if not isinstance(names, list) or len(names) != CLASSES:
            raise _foreign(path, f"it does not name {CLASSES} classes")


def _dictionary(path: Path) -> dict[str, Any]:
    """Return the dictionary of a pickle; Python 2 has written its keys as bytes."""
    try:
        content = read_pickle(_content(path))
    except ValueError as error:
        raise _foreign(path, str(error)) from None
    if not isinstance(content, dict):
        raise _foreign(path, "it holds no dictionary")
    return {key.decode("latin1") if isinstance(key, bytes) else str(key): value for key, value in content.items()}


def _foreign(path: Path, reason: str) -> DptraceError:
    return DptraceError(f"--data: {path} is not a file of CIFAR-10's Python form: {sanitize(reason)}. {_ADVICE}")
