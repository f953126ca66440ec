"""Small folders of CIFAR-10, in the binary form and in the Python form as Python 2 has written it."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

__all__ = ["NAMES", "python2_batch", "write_binary", "write_python"]

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


def write_python(folder: Path, each: int = 4) -> Path:
    """Write the six files of the Python form and batches.meta, with *each* images in each; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, name in enumerate(NAMES):
        pixels, classes = _images(number, each)
        (folder / name).write_bytes(python2_batch(pixels, classes.tolist()))
    names = b"".join(_text(f"class {number}".encode()) for number in range(10))
    meta = b"\x80\x02}q\x01(" + _text(b"label_names") + b"](" + names + b"e" + _text(b"num_vis") + b"M\x00\x0cu."
    (folder / "batches.meta").write_bytes(meta)
    return folder


def _text(text: bytes) -> bytes:
    return b"U" + bytes([len(text)]) + text


def python2_batch(pixels: NDArray[np.uint8], labels: list[int]) -> bytes:
    """Return a batch as cPickle of Python 2 writes it: protocol 2, texts as bytes, the array by _reconstruct."""
    rows, width = pixels.shape
    raw = pixels.tobytes()
    dtype = b"cnumpy\ndtype\nq\x05" + _text(b"u1") + b"K\x00K\x01\x87R(K\x03" + _text(b"|") + b"NNNJ" + b"\xff" * 4
    dtype += b"J" + b"\xff" * 4 + b"K\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x02cnumpy\nndarray\nq\x03K\x00\x85" + _text(b"b") + b"\x87R"
    array += b"(K\x01J" + struct.pack("<i", rows) + b"M" + struct.pack("<H", width) + b"\x86" + dtype + b"\x89"
    array += b"T" + struct.pack("<i", len(raw)) + raw + b"tb"
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}q\x01(" + _text(b"data") + array + _text(b"labels") + listed + b"u."
