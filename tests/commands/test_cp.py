"""``dptrace cp``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dptrace.commands.cp import command
from dptrace.errors import UsageError
from dptrace.record.options.modes import trainer
from tests.support.recordings import dptrace


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_trainer_is_copied(tmp_path: Path) -> None:
    """Into a folder, under a new name, or here; and the next command is told."""
    for target, name in ((".", "naive.py"), ("mine.py", "mine.py"), (None, "naive.py")):
        done = CliRunner().invoke(command, ["naive", "--force", *([target] if target else [])])

        assert 0 == done.exit_code, (target, name)
        assert trainer("naive").read_text() == (tmp_path / name).read_text(), (target, name)
        assert f"Wrote {name}.\nNext: dptrace record --gpus 2 -o runs/my-{name[:-3]} ./{name}\n" == done.stderr


def test_a_copy_that_was_edited_is_not_overwritten(tmp_path: Path) -> None:
    """Only --force does that."""
    (tmp_path / "ddp.py").write_text("mine")

    assert isinstance(CliRunner().invoke(command, ["ddp", "."]).exception, UsageError)
    assert "mine" == (tmp_path / "ddp.py").read_text()
    CliRunner().invoke(command, ["ddp", ".", "--force"])
    assert trainer("ddp").read_text() == (tmp_path / "ddp.py").read_text()


@pytest.mark.slow
@pytest.mark.spawn
def test_a_copy_is_recorded_with_its_own_recorder(tmp_path: Path) -> None:
    """Its record() counts, dptrace record decides on the folder and on the steps, and none is counted twice."""
    CliRunner().invoke(command, ["ddp", "."])
    own = ["--model", "small", "--batch-size", "64", "--steps", "7", "--wait", "0"]
    done = dptrace(
        "record", "--gpus", "2", "--steps", "2", "-o", "mine", "./ddp.py", *own, "--out", "own", cwd=tmp_path
    )

    assert "dptrace record keeps this recording in mine, not in own." in done.stderr
    info = json.loads((tmp_path / "mine" / "run.json").read_text())
    assert ({"wait": 0, "warmup": 3, "steps": 2}, []) == (info["schedule"], info["notes"])
    assert ("small", "ddp.py", 64) == (info["model"], info["script"], info["options"]["batch_size"])
    assert 5 == len(info["losses"])
    assert not (tmp_path / "own").exists()
