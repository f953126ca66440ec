"""The files of a watch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dptrace.errors import UsageError
from dptrace.watch.folder import check_folder
from dptrace.watch.records import HEADER, STEP, STEP_TYPE, Appended, Tail, rank_files, read
from tests.support.watch_records import Job


def record(number: int) -> bytes:
    return STEP.pack(number, 0, number, number + 1, *range(5), *range(5), 0, 0)


def test_a_frame_is_one_line(tmp_path: Path) -> None:
    """Pandas reads the records after the header; the columns say what they are."""
    import pandas

    Job("ddp", 2).run(5).write(tmp_path)
    frame = pandas.DataFrame(np.fromfile(tmp_path / "rank0001.steps", STEP_TYPE, offset=4096))

    assert [0, 1, 2, 3, 4] == frame["step"].tolist()
    assert 9e6 == pytest.approx(frame["forward_ns"].mean(), rel=0.1)


def test_half_a_record_at_the_end_is_left_out(tmp_path: Path) -> None:
    """What a killed rank was writing is no record."""
    file = Appended(tmp_path / "rank0000.steps", {"rank": 0})
    file.write(record(1) + record(2) + record(3)[:50])

    assert [1, 2] == read(file.path)["step"].tolist()


def test_a_full_file_begins_anew_and_a_reader_follows(tmp_path: Path) -> None:
    """A reader sees each record once, also across the change; the disk holds two files at most."""
    path = tmp_path / "rank0000.steps"
    file = Appended(path, {}, limit=HEADER + 3 * STEP.size)
    tail = Tail(path)
    seen = []
    for number in range(8):
        file.write(record(number))
        seen += tail.read()["step"].tolist()

    assert list(range(8)) == seen
    assert 2 == len(list(tmp_path.iterdir()))


@pytest.mark.parametrize("path", ["/dev/full", "missing/rank0000.steps"])
def test_a_file_that_cannot_be_written_says_so_once_and_raises_nothing(path: str, tmp_path: Path) -> None:
    """A full disk, and a folder that is gone."""
    file = Appended(tmp_path / path, {})
    file.write(record(1))
    file.write(record(2))

    assert file.error


def test_a_folder_with_other_files_is_not_touched(tmp_path: Path) -> None:
    """Force replaces a watch, and nothing else."""
    Job("ddp", 2).run(5).write(tmp_path)
    with pytest.raises(UsageError, match="--force"):
        check_folder(tmp_path)
    (tmp_path / "mine.txt").touch()
    with pytest.raises(UsageError, match=r"mine\.txt"):
        check_folder(tmp_path, force=True)

    assert (tmp_path / "mine.txt").exists()
    assert {0, 1} == rank_files(tmp_path).keys()
