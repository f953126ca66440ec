"""Tests of the file that starts a module of dptrace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.paths import ROOT


def test_ctrl_c_before_the_script_begins_shows_no_frames_of_dptrace(tmp_path: Path) -> None:
    """The process ends by the signal, as a plain Python does."""
    (tmp_path / "interrupted.py").write_text("raise KeyboardInterrupt\n")
    started = subprocess.run(
        [sys.executable, ROOT / "dptrace" / "record" / "launch" / "start.py", "interrupted"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (-signal.SIGINT, "") == (started.returncode, started.stderr)
