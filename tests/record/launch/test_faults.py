"""An error of the recorder never ends a training: its last line and its exit code are those of the plain script."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.support.faults import setting
from tests.support.forking import run_python
from tests.support.interruptions import STEPS, interrupt
from tests.support.recordings import environment, scratch

pytest.importorskip("torch")
pytestmark = pytest.mark.spawn

_STAGING = ".t.recording"
BEGUN, WRITING, WRITTEN = f"{_STAGING}/rank0.steps", f"{_STAGING}/window1", "t"
"""Files that exist from a moment on."""


@cache
def _plain() -> str:
    """Return what the script prints without dptrace."""
    folder = scratch() / "plain"
    folder.mkdir()
    interrupt(folder, "nothing")  # writes the script, too
    words = ["--standalone", "--nproc-per-node", "2", "train.py", "nothing", "in", "all", "10"]
    done = run_python("-m", "torch.distributed.run", *words, cwd=folder, env=environment())
    assert 0 == done.returncode
    return next(line for line in done.stdout.splitlines() if line.startswith("last"))


@pytest.mark.slow
def test_recording_does_not_change_the_training(tmp_path: Path) -> None:
    """The parameters after the last step are those of torchrun alone; what rank 1 printed stays with the run."""
    left = interrupt(tmp_path, "nothing")

    assert _plain() == left.printed.splitlines()[-1]
    assert {"t": {0: STEPS, 1: STEPS}} == left.runs
    assert 21 == (tmp_path / "t" / "rank1.log").read_text().splitlines().count("." * 9000)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("role", "error", "since"),
    [
        ("torchrun", "ENOSPC", "."),
        ("rank", "EACCES", "."),
        ("rank", "ENOSPC", BEGUN),
        ("rank", "EIO", WRITING),
        ("launcher", "ENOSPC", BEGUN),
        ("launcher", "EIO", WRITING),
        ("launcher", "EACCES", WRITTEN),
        ("all", "ENOSPC", BEGUN),
        ("all", "ENOSPC", WRITING),
    ],
)
def test_the_training_goes_on_where_nothing_can_be_written(tmp_path: Path, role: str, error: str, since: str) -> None:
    """Every write to the run's folder fails, in one kind of process or in all; a rank's output fills no pipe."""
    left = interrupt(tmp_path, "nothing", fault=setting(role, error, since))

    assert (0, _plain()) == (left.code, left.printed.splitlines()[-1])
    assert "Traceback" not in left.said
    assert 0 == left.orphans
    if role == "torchrun" or since == WRITTEN:
        assert {"t": {0: STEPS, 1: STEPS}} == left.runs
    else:
        assert "recording" in left.said
        assert "Wrote" not in left.said


def test_a_failure_of_the_training_is_still_reported(tmp_path: Path) -> None:
    """Its exit code is not hidden by that of the recorder."""
    left = interrupt(tmp_path, "raise", "in", "0", fault=setting("all", "ENOSPC", BEGUN))

    assert 1 == left.code
    assert "ValueError: boom" in left.said
