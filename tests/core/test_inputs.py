"""Files that a command reads and writes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dptrace.core.inputs import command_files, note_inputs, note_output, refuse_overwriting
from dptrace.errors import UsageError


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "rank0.json"
    path.write_text("recorded")
    return path


def spellings(trace: Path) -> dict[str, Path]:
    """Name a file in all ways that a file system has."""
    here = trace.parents[1]
    (here / "link.json").symlink_to(trace)
    os.link(trace, here / "hard.json")
    (here / "folder").symlink_to(trace.parent)
    return {
        "the same path": trace,
        "another spelling": here / "run" / ".." / "run" / "rank0.json",
        "a relative path": Path(os.path.relpath(trace)),
        "a symbolic link": here / "link.json",
        "a hard link": here / "hard.json",
        "a linked folder": here / "folder" / "rank0.json",
    }


def test_an_input_is_no_output_by_any_name(trace: Path) -> None:
    """Whichever of the two is noted first."""
    for name, output in spellings(trace).items():
        for output_first in (True, False):
            with pytest.raises(UsageError, match="even with --force"), command_files():
                if output_first:
                    note_output(output)
                note_inputs([trace])
                note_output(output)
                pytest.fail(f"{name} was accepted")


def test_a_folder_with_an_input_is_no_output(trace: Path) -> None:
    """Nor is a folder above it, or a link to one; what a command has written there itself, it may read."""
    (trace.parents[1] / "folder").symlink_to("run")
    for output in (trace.parent, trace.parents[1], trace.parents[1] / "folder"):
        with pytest.raises(UsageError, match="even with --force"), command_files():
            note_inputs([trace])
            note_output(output)

        with command_files():
            note_output(output)
            note_inputs([trace])


def test_a_file_beside_the_input_is_an_output(trace: Path) -> None:
    """A new file and an existing one in the run's folder are written, and so is another folder."""
    (trace.parent / "export.pftrace").write_text("old")
    (trace.parents[1] / "runs").mkdir()

    with command_files():
        note_inputs([trace])
        for name in ("run/new.html", "run/export.pftrace", "runs", "missing"):
            note_output(trace.parents[1] / name)


def test_devices_and_pipes_are_read_and_written(tmp_path: Path) -> None:
    """They lose nothing: /dev/stdin and /dev/stdout are one terminal."""
    os.mkfifo(tmp_path / "pipe")

    refuse_overwriting(["/dev/null", tmp_path / "pipe"], [tmp_path / "pipe", "/dev/null"])


def test_commands_do_not_know_each_other(trace: Path) -> None:
    """What one command has read, the next may write; outside of commands nothing is remembered."""
    with command_files():
        note_inputs([trace])
    with command_files():
        note_output(trace)
    note_inputs([trace])
    note_output(trace)
