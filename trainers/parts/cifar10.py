"""CIFAR-10 in a folder: its binary form read here, its Python form, which consists of pickles, by torchvision."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from dptrace.errors import DptraceError, UsageError

CLASSES = 10
PIXELS = 3 * 32 * 32
"""Bytes of an image: red, green and blue, each row by row."""
_TRAINING = tuple(f"data_batch_{number}" for number in range(1, 6))
_VALIDATION = ("test_batch",)
_MAX_BYTES = 1 << 28
"""Of a file; CIFAR-10's have 31 million."""
_PYTHON = "cifar-10-batches-py"
_ADVICE = "Unpack cifar-10-binary.tar.gz and pass its folder, or leave --data out to train on synthetic images."


class Images(msgspec.Struct, frozen=True):
    """Images and their classes."""

    pixels: NDArray[np.uint8]
    """(images, 3072)."""
    classes: NDArray[np.uint8]
    """(images): 0 to 9."""


def read_images(folder: str | Path, validation: bool = False) -> Images:
    """Read the training images, or those to validate on, from the folder or the subfolder that its archive makes.

    Raises:
        UsageError: the folder, or a file of it, is missing; or it is of the Python form, and torchvision is missing.
        DptraceError: a file is damaged, or not of CIFAR-10.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise UsageError(f"--data {folder}: not a folder. {_ADVICE}")
    for place in (folder, folder / "cifar-10-batches-bin"):
        if any(place.glob("data_batch_*.bin")):
            batches = [_binary(place / f"{name}.bin") for name in (_VALIDATION if validation else _TRAINING)]
            return Images(*(np.concatenate(parts) for parts in zip(*batches, strict=True)))
    for place in (folder.absolute(), folder.absolute() / _PYTHON):
        if (place / _TRAINING[0]).is_file():
            return _python(place, validation)
    raise UsageError(f"--data {folder}: holds no files of CIFAR-10, such as data_batch_1.bin. {_ADVICE}")


def _binary(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Read a binary file: for each image a byte with its class, then its pixels."""
    if not path.is_file():
        raise UsageError(f"--data: {path} is missing. {_ADVICE}")
    try:
        content = np.fromfile(path, np.uint8, _MAX_BYTES + 1)
    except OSError as error:
        raise DptraceError(f"--data: {path} cannot be read: {error.strerror}.") from None
    record = 1 + PIXELS
    whole = 0 < len(content) <= _MAX_BYTES and len(content) % record == 0
    if not whole or content[::record].max() >= CLASSES:
        raise DptraceError(
            f"--data: {path} is not a binary file of CIFAR-10 ({record:,} bytes for each image). {_ADVICE}"
        )
    images = content.reshape(-1, record)
    return images[:, 1:], images[:, 0]


def _python(place: Path, validation: bool) -> Images:
    """Let torchvision read the pickles, which it does only if they are the published ones, by their checksums."""
    try:
        from torchvision.datasets import CIFAR10
    except ImportError:
        raise UsageError(
            f"--data: {place} is CIFAR-10's Python form, which consists of pickles; only torchvision reads it, and it "
            f"is not installed. {_ADVICE}"
        ) from None
    if place.name != _PYTHON:
        raise UsageError(f"--data: torchvision reads {place} only if it is called {_PYTHON}: rename it. {_ADVICE}")
    try:
        images = CIFAR10(str(place.parent), train=not validation)
    except RuntimeError as error:
        raise DptraceError(f"--data: {place} is not CIFAR-10 as published ({error}). {_ADVICE}") from None
    pixels = np.ascontiguousarray(images.data.transpose(0, 3, 1, 2)).reshape(-1, PIXELS)
    return Images(pixels, np.array(images.targets, np.uint8))
