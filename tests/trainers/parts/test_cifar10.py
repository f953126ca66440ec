"""CIFAR-10 in a folder: the binary form, the Python form by torchvision, and advice where neither is."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dptrace.errors import DptraceError, UsageError
from dptrace.trainers.parts.cifar10 import read_images
from tests.support.cifar10_files import write_binary


@pytest.mark.parametrize("name", ["any", "cifar-10-batches-bin"])
def test_the_binary_form_is_read(name: str, tmp_path: Path) -> None:
    """Five files to train on in the order of their numbers, one to validate on; the folder above is as good."""
    folder = write_binary(tmp_path / name)
    training = read_images(tmp_path if name != "any" else folder)

    assert ((20, 3072), [0, 1, 2, 3] * 5) == (training.pixels.shape, training.classes.tolist())
    assert [0, 1, 2, 3, 10, 11] == training.pixels[:6, 0].tolist()
    assert [50, 51, 52, 53] == read_images(folder, validation=True).pixels[:, -1].tolist()


def test_what_is_missing_is_named_with_the_archive(tmp_path: Path) -> None:
    """A folder that is none, an empty one, and one without one of its files, or with a folder in its place."""
    folder = write_binary(tmp_path / "one")
    (folder / "data_batch_2.bin").unlink()
    (folder / "data_batch_2.bin").mkdir()
    (tmp_path / "empty").mkdir()

    for place, says in (
        ("none", "not a folder"),
        ("empty", "no files of CIFAR-10"),
        ("one", "data_batch_2.bin is missing"),
    ):
        with pytest.raises(UsageError, match=says) as error:
            read_images(tmp_path / place)
        assert "cifar-10-binary.tar.gz" in str(error.value)


@pytest.mark.heavy
@pytest.mark.parametrize("content", [b"\x00" * 3072, b"\xff" * 3073, b"", None])
def test_a_damaged_or_foreign_file_is_named(content: bytes | None, tmp_path: Path) -> None:
    """Cut, with a class that there is none of, empty, or far too large; the exit code is that of bad input."""
    folder = write_binary(tmp_path)
    path = folder / "data_batch_2.bin"
    if content is None:
        with path.open("ab") as file:
            file.truncate((1 << 28) + 1)
    else:
        path.write_bytes(content)

    with pytest.raises(DptraceError, match=str(path)) as error:
        read_images(folder)
    assert (1, True) == (error.value.exit_code, str(error.value).isprintable())


class _CIFAR10:
    """torchvision's data set, as far as it is used: rows of pixels with three colors, and an error for other files."""

    def __init__(self, root: str, train: bool) -> None:
        if (Path(root) / "cifar-10-batches-py" / "data_batch_1").read_bytes() != b"published":
            raise RuntimeError("Dataset not found or corrupted. You can use download=True to download it")
        colors = np.arange(3, dtype=np.uint8) + (0 if train else 10)
        self.data = np.broadcast_to(colors, (2, 32, 32, 3))
        self.targets = [7, 8]


def test_the_python_form_is_torchvisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pickles that are the published ones, by its checksums; without torchvision, none is opened."""
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(b"published")
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(UsageError, match="torchvision") as refused:
        read_images(tmp_path)
    assert "cifar-10-binary.tar.gz" in str(refused.value)

    datasets: Any = ModuleType("torchvision.datasets")
    datasets.CIFAR10 = _CIFAR10
    monkeypatch.setitem(sys.modules, "torchvision", ModuleType("torchvision"))
    monkeypatch.setitem(sys.modules, "torchvision.datasets", datasets)
    monkeypatch.chdir(folder)
    for place in (tmp_path, folder, "."):
        images = read_images(place)
        assert ([7, 8], [0, 1, 2]) == (images.classes.tolist(), images.pixels[1, ::1024].tolist())
    assert 10 == read_images(folder, validation=True).pixels[0, 0]

    (folder / "data_batch_1").write_bytes(b"cos\nsystem\n")
    with pytest.raises(DptraceError, match="not CIFAR-10 as published"):
        read_images(folder)
    folder.rename(tmp_path / "other")
    with pytest.raises(UsageError, match="rename it"):
        read_images(tmp_path / "other")
