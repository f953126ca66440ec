"""What dptrace record prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from dptrace.commands.recording.report import RunReporter, interruption_text
from dptrace.record.launch.torchrun import Launch
from dptrace.record.processes import Interrupted

INFO = {
    "folder": "runs/x",
    "notes": ["one\x1b[31m note"],
    "mode": None,
    "profiler_overhead": None,
    "ranks": [{"recorded_steps": 3}],
}


def _launch(stop: bool = False) -> Launch:
    return Launch(Path("runs/x"), False, Path("train.py"), (), 2, None, stop=stop)


@pytest.mark.parametrize(("goes_on", "stop"), [(True, False), (True, True), (False, False)])
def test_a_written_run_is_announced_with_the_next_command(
    goes_on: bool, stop: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether training goes on is said only where it does; control characters of a note are not printed."""
    RunReporter(_launch(stop), False, lambda done, what: None).recorded(INFO, goes_on)
    printed = capsys.readouterr().err

    assert "Wrote runs/x: 3 steps of 1 rank." in printed
    assert "dptrace analyze runs/x" in printed
    assert (goes_on and not stop) == ("Ctrl-C" in printed)
    assert "\x1b" not in printed


@pytest.mark.parametrize(("folder", "other"), [("runs/x", False), ("runs/x-2", False), ("runs/x.run", True)])
def test_a_run_that_had_to_take_another_name_is_pointed_out(
    folder: str, other: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """The number of a later run is part of its name; an ending is not."""
    RunReporter(_launch(), False, lambda done, what: None).recorded(INFO | {"folder": folder}, False)

    assert other == ("the run is in" in capsys.readouterr().err)


def test_quiet_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither runs nor sentences."""
    reporter = RunReporter(_launch(), True, lambda done, what: None)
    reporter.recorded(INFO, True)
    reporter.measured(INFO)
    reporter.message("x")

    assert "" == capsys.readouterr().err


def test_after_an_interruption_what_is_kept_is_named() -> None:
    """Complete runs, incomplete ones and checkpoints, each with the command that reads it; or that there is nothing."""
    stopped = Interrupted(2)
    assert "nothing is kept" in interruption_text(stopped, "")
    stopped.runs = ["runs/my x"]
    assert "dptrace analyze 'runs/my x'" in interruption_text(stopped, "")
    stopped.kept_failed = Path("runs/x.failed")
    text = interruption_text(stopped, "The checkpoints stay.")
    assert "dptrace analyze runs/x.failed" in text
    assert text.endswith("The checkpoints stay.")
