"""torchrun, and which ranks failed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="recording needs torch")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("body", "code", "told"), [("", 0, None), ("raise SystemExit(7)", 1, [{"rank": 0, "exit_code": 7}])]
)
def test_failures_are_noted_with_their_exit_codes(body: str, code: int, told: object, tmp_path: Path) -> None:
    """A script that ends well leaves no note; one that does not is named by its rank."""
    script, note = tmp_path / "script.py", tmp_path / "note.json"
    script.write_text(body)
    arguments = ["--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=1", str(script)]

    ended = subprocess.run(
        [sys.executable, "-m", "dptrace.record.launch.torchrun_agent", str(note), *arguments],
        capture_output=True,
        timeout=60,
    )

    assert code == ended.returncode
    assert told == (json.loads(note.read_text()) if note.exists() else None)
