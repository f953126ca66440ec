"""torchrun and the file of failed ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="recording needs torch")


@pytest.mark.slow
@pytest.mark.spawn
@pytest.mark.parametrize(
    ("body", "code", "failures"), [("", 0, None), ("raise SystemExit(7)", 1, [{"rank": 0, "exit_code": 7}])]
)
def test_failures_are_noted_with_their_exit_codes(body: str, code: int, failures: object, tmp_path: Path) -> None:
    """A script that succeeds leaves no file; one that fails is listed with its rank."""
    script, path = tmp_path / "script.py", tmp_path / "agent.json"
    script.write_text(body)
    arguments = ["--standalone", "--local-addr=127.0.0.1", "--nproc-per-node=1", str(script)]

    ended = subprocess.run(
        [sys.executable, "-m", "dptrace.record.launch.torchrun_agent", str(path), "1", *arguments],
        capture_output=True,
        timeout=600,
    )

    assert code == ended.returncode
    assert failures == (json.loads(path.read_text()) if path.exists() else None)
