"""Small folders of CIFAR-10 in the binary form."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

NAMES = (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
_PIXELS = 3072


def _images(number: int, each: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return pixels that count up with the file and the image, and classes that count up with the image."""
    pixels = np.repeat((number * 10 + np.arange(each, dtype=np.uint8))[:, None], _PIXELS, axis=1)
    return pixels, (np.arange(each) % 10).astype(np.uint8)


def write_binary(folder: Path, each: int = 4) -> Path:
    """Write the six files of the binary form, with *each* images in each; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(NAMES):
        pixels, classes = _images(number, each)
        np.hstack([classes[:, None], pixels]).tofile(folder / f"{name}.bin")
    return folder
