"""Messages between launcher and ranks."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dptrace.errors import UsageError
from dptrace.record import messages
from dptrace.record.messages import LauncherSettings


def test_an_assignment_survives_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rank reads what the launcher writes; without the variable there are no settings."""
    monkeypatch.delenv("DPTRACE_RECORDING", raising=False)
    assert LauncherSettings.from_environment() is None
    given = LauncherSettings("a folder", "runs/x", steps=7, wait=0)
    for name, value in given.environment().items():
        monkeypatch.setenv(name, value)

    assert given == LauncherSettings.from_environment()


def test_a_rank_is_known_by_torchruns_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the variables, a process is rank 0 of 1."""
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert (0, 0, 1) == (messages.rank(), messages.local_rank(), messages.world_size())
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert (5, 1, 8) == (messages.rank(), messages.local_rank(), messages.world_size())


def test_the_first_failure_of_a_rank_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second error of the same rank does not replace the first; dptrace's own errors are advice."""
    monkeypatch.setenv("RANK", "3")
    messages.report_failure(UsageError("nobody listens"))
    for name, value in LauncherSettings(str(tmp_path), "x").environment().items():
        monkeypatch.setenv(name, value)

    messages.report_failure(UsageError("too many"))
    messages.report_failure(ValueError("later"))

    (message,) = messages.read_messages(tmp_path, "failure")
    assert (3, "too many", True, 2) == tuple(message[key] for key in ("rank", "message", "advice", "exit_code"))
    assert [] == list(tmp_path.glob(".*"))


def test_notes_come_in_the_order_of_ranks(tmp_path: Path) -> None:
    """Rank 10 comes after rank 9, not after rank 1."""
    for rank in (10, 9, 1):
        messages.write_json(tmp_path / f"rank{rank}.piece.json", {"rank": rank})

    assert [1, 9, 10] == [message["rank"] for message in messages.read_messages(tmp_path, "piece")]


def test_numbers_that_are_not_finite_are_written_as_null(tmp_path: Path) -> None:
    """JSON lacks them; a text that spells one stays, and other values become text."""
    path = tmp_path / "run.json"
    options = {"clip": math.inf, "low": [-math.inf, math.nan, 0.1], "name": "Infinity and NaN", "kind": Path("a")}

    messages.write_json(path, {"options": options})

    read = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert {"options": {"clip": None, "low": [None, None, 0.1], "name": "Infinity and NaN", "kind": "a"}} == read


def test_a_group_that_a_script_made_shows_more_than_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that a script spawns share one environment; under dptrace record, torchrun's numbers are used."""
    monkeypatch.delenv("DPTRACE_RECORDING", raising=False)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    joined = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 3, get_world_size=lambda: 4
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", joined)
    assert (3, 4) == (messages.rank(), messages.world_size())

    for name, value in LauncherSettings("f", "s").environment().items():
        monkeypatch.setenv(name, value)
    assert (0, 1) == (messages.rank(), messages.world_size())
