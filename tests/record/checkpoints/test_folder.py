"""The folder of checkpoints, and the sentence on them after an interrupted training."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrace.errors import UsageError
from dptrace.record.checkpoints.folder import (
    check_writable,
    checkpoint_folder,
    checkpoint_steps,
    kept_checkpoints_message,
)


def test_a_mode_has_a_folder_of_its_own_unless_you_name_another() -> None:
    """Two modes do not share their checkpoints by default."""
    assert Path("checkpoints/ddp") == checkpoint_folder("ddp", None)
    assert Path("kept") == checkpoint_folder("ddp", "kept")


def test_only_whole_checkpoints_count(tmp_path: Path) -> None:
    """They are listed in the order of steps; partial and other files do not count."""
    assert [] == checkpoint_steps(tmp_path / "none")
    for name in ("step-00000010", "step-00000005", ".step-00000015.part", "notes.txt"):
        (tmp_path / name).write_text("")

    assert [5, 10] == checkpoint_steps(tmp_path)


def test_what_stays_is_said_with_the_way_to_go_on(tmp_path: Path) -> None:
    """The sentence names folder, last step and option; it is empty without checkpoints."""
    assert "" == kept_checkpoints_message(None) == kept_checkpoints_message(tmp_path)
    folder = tmp_path / "my own"
    folder.mkdir()
    (folder / "step-00000005").write_text("")

    message = kept_checkpoints_message(folder)
    assert all(fact in message for fact in (f"'{folder}'", "step 5", "--resume"))


def test_a_folder_that_cannot_be_made_is_refused_and_one_that_can_is_not_left_behind(tmp_path: Path) -> None:
    """A path below a file cannot be a folder; an existing folder keeps its content."""
    (tmp_path / "file").write_text("mine")
    for place in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match=r"no checkpoint can be written there: (File exists|Not a directory)"):
            check_writable(place)
    check_writable(tmp_path / "new" / "deeper")
    check_writable(tmp_path)

    assert ["file"] == [path.name for path in tmp_path.iterdir()]
