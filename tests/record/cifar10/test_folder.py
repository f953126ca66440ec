"""CIFAR-10 in a folder: both forms, where they are found, and advice where they are not."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dptrace.errors import DptraceError, UsageError
from dptrace.record.cifar10.folder import read_images
from tests.support.cifar10_files import python2_batch, write_binary, write_python


def test_both_forms_hold_the_same_images(tmp_path: Path) -> None:
    """Five files to train on in the order of their numbers, one to validate on, red before green before blue."""
    binary, python = write_binary(tmp_path / "b"), write_python(tmp_path / "p")
    training = read_images(binary)

    assert ((20, 3072), [0, 1, 2, 3] * 5) == (training.pixels.shape, training.classes.tolist())
    assert [0, 1, 2, 3, 10, 11] == training.pixels[:6, 0].tolist()
    assert [50, 51, 52, 53] == read_images(python, validation=True).pixels[:, -1].tolist()
    assert np.array_equal(training.pixels, read_images(python).pixels)
    assert np.array_equal(training.classes, read_images(python).classes)


@pytest.mark.parametrize("name", ["cifar-10-batches-py", "cifar-10-batches-bin"])
def test_the_folder_above_is_as_good(tmp_path: Path, name: str) -> None:
    """The archives unpack into a folder of their own."""
    (write_python if name.endswith("py") else write_binary)(tmp_path / name)

    assert 20 == len(read_images(tmp_path).classes)


@pytest.mark.parametrize("form", [write_binary, write_python])
def test_what_is_missing_is_named_with_the_archives(tmp_path: Path, form: Any) -> None:
    """A folder that is none, an empty one, and one without one of its files."""
    folder = form(tmp_path / "one")
    file = sorted(folder.glob("data_batch_2*"))[0]
    file.unlink()
    (tmp_path / "empty").mkdir()

    for place, says in (
        ("none", "not a folder"),
        ("empty", "no files of CIFAR-10"),
        ("one", f"{file.name} is missing"),
    ):
        with pytest.raises(UsageError, match=says) as error:
            read_images(tmp_path / place)
        assert "cifar-10-python.tar.gz" in str(error.value)


def batch(**changes: Any) -> bytes:
    content = {"data": np.zeros((2, 3072), np.uint8), "labels": [1, 2], **changes}
    return pickle.dumps({key: value for key, value in content.items() if value is not None}, protocol=2)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("data_batch_2.bin", b"\x00" * 3072, "not a binary file"),
        ("data_batch_2.bin", b"\xff" * 3073, "not a binary file"),
        ("data_batch_2.bin", b"", "not a binary file"),
        ("data_batch_3", b"", "damaged"),
        ("data_batch_3", b"no pickle", "damaged"),
        ("data_batch_3", python2_batch(np.zeros((2, 3072), np.uint8), [1, 2])[:-40], "damaged"),
        ("data_batch_3", python2_batch(np.zeros((2, 3071), np.uint8), [1, 2]), "not images of 3,072 bytes"),
        ("data_batch_3", python2_batch(np.zeros((0, 3072), np.uint8), []), "not images"),
        ("data_batch_3", batch(labels=[1]), "for each of 2 images"),
        ("data_batch_3", batch(labels=[1, 10]), "class from 0 to 9"),
        ("data_batch_3", batch(labels=None), "class from 0 to 9"),
        ("data_batch_3", batch(labels=[1, True]), "class from 0 to 9"),
        ("data_batch_3", batch(data=b"x"), "not images"),
        ("data_batch_3", batch(fine_labels=[1, 2]), "CIFAR-100"),
        ("data_batch_3", pickle.dumps([1], protocol=2), "no dictionary"),
        ("batches.meta", pickle.dumps({"label_names": ["a"]}, protocol=2), "10 classes"),
        ("data_batch_3", b"\x80\x02cos\n\x1b[31m\n.", "os"),
    ],
)
def test_a_damaged_or_foreign_file_is_named_with_what_is_wrong(
    tmp_path: Path, name: str, content: bytes, says: str
) -> None:
    """The reason and the archives to unpack, in plain text; the exit code is that of bad input."""
    folder = (write_binary if name.endswith(".bin") else write_python)(tmp_path)
    (folder / name).write_bytes(content)

    with pytest.raises(DptraceError, match=says) as error:
        read_images(folder)
    assert str(folder / name) in str(error.value)
    assert (1, True) == (error.value.exit_code, str(error.value).isprintable())


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    """Nor is a folder in the place of a file taken for one."""
    folder = write_python(tmp_path)
    with (folder / "data_batch_1").open("ab") as file:
        file.truncate((1 << 28) + 1)

    with pytest.raises(DptraceError, match="too large"):
        read_images(folder)
    (folder / "data_batch_1").unlink()
    (folder / "data_batch_1").mkdir()
    with pytest.raises(UsageError, match="missing"):
        read_images(folder)
