"""What the verbs share."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrace.commands.common import check_output, replacing
from dptrace.errors import DptraceError, UsageError


def test_replacing_leaves_nothing_when_the_writer_fails(tmp_path: Path) -> None:
    """An error while writing leaves the old file as it was and no file beside it."""
    path = tmp_path / "a.txt"
    path.write_text("old")

    with pytest.raises(ZeroDivisionError), replacing(path) as beside:
        beside.write_text("half")
        raise ZeroDivisionError

    assert ("old", [path]) == (path.read_text(), list(tmp_path.iterdir()))


def test_replacing_turns_a_full_disk_into_advice(tmp_path: Path) -> None:
    """An operating system error names the file."""
    with pytest.raises(DptraceError, match=r"a\.txt: can't be written"), replacing(tmp_path / "a.txt"):
        raise OSError(28, "No space left on device")


def test_check_output_refuses_before_any_work(tmp_path: Path) -> None:
    """A folder, an existing file and a missing folder are wrong use."""
    (tmp_path / "a").write_text("")
    for path in (tmp_path, tmp_path / "a", tmp_path / "no" / "b"):
        with pytest.raises(UsageError):
            check_output(path, force=False)
    check_output(tmp_path / "a", force=True)
