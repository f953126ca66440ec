"""``dptrace record`` in front of the command line that starts a script."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.launchers import fake_accelerate
from tests.support.recordings import dptrace

SCRIPT = """
import os, sys
import torch, torch.distributed as dist
{inner}

if "RANK" in os.environ:
    dist.init_process_group("gloo")
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
if os.environ.get("RANK", "0") == "0":
    spec = __spec__ and __spec__.name
    ranks = os.environ.get("WORLD_SIZE", "no")
    print(__name__, spec, os.path.basename(sys.argv[0]), sys.argv[1:], ranks, sys.flags.optimize)
if dist.is_initialized():
    dist.destroy_process_group()
"""
SCHEDULE = ["--steps", "2", "--warmup", "2", "--wait", "0"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write one training as a script and as a module of a package."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "train.py").write_text(SCRIPT.format(inner="import pkg"))
    (tmp_path / "train.py").write_text(SCRIPT.format(inner=""))
    return tmp_path


@pytest.mark.slow
@pytest.mark.spawn
@pytest.mark.parametrize(
    ("command", "script", "ranks", "printed"),
    [
        (["--gpus", "2", "-m", "pkg.train", "--gpus"], "pkg.train", 2, "pkg.train train.py ['--gpus'] 2 0"),
        (["--gpus", "1", "python", "train.py", "-m"], "train.py", 1, "None train.py ['-m'] no 0"),
        (["--gpus", "2", "python", "-O", "train.py"], "train.py", 2, "None train.py [] 2 1"),
        (["torchrun", "--nproc-per-node", "2", "train.py", "a"], "train.py", 2, "None train.py ['a'] 2 0"),
        (
            ["python", "-m", "torch.distributed.launch", "--role", "r", "-m", "pkg.train"],
            "pkg/train.py",
            1,
            "pkg.train train.py ['--local-rank=0'] 1 0",
        ),
        (["accelerate", "launch", "--nproc-per-node=1", "train.py", "a"], "train.py", 1, "None train.py ['a'] 1 0"),
    ],
)
def test_a_command_line_does_what_it_looks_like(
    command: list[str], script: str, ranks: int, printed: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many ranks as it says, the program's own arguments and options of Python; the run is named after it.

    A script without a launcher is one process, which finds no variable of a launcher.
    """
    monkeypatch.setenv("PATH", f"{fake_accelerate(folder)}{os.pathsep}{os.environ['PATH']}")
    done = dptrace("record", *SCHEDULE, *command, cwd=folder)

    assert f"__main__ {printed}\n" == done.stdout
    info: dict[str, Any] = json.loads((folder / "runs" / "train" / "run.json").read_text())
    assert ("complete", ranks) == (info["status"], info["world_size"])
    assert info["script"].endswith(script)
    assert [2] * ranks == [rank["recorded_steps"] for rank in info["ranks"]]


@pytest.mark.spawn
def test_the_cause_of_a_failure_is_explained(tmp_path: Path) -> None:
    """A script that asks for CUDA is told that there is none, besides its own traceback in torch's words."""
    (tmp_path / "train.py").write_text("import torch\ntorch.ones(1, device='cuda')\n")
    done = dptrace("record", "-q", "--gpus", "1", "train.py", cwd=tmp_path, ok=False)

    first = next(line for line in done.stderr.splitlines() if line.startswith("Error:"))
    assert "this needs CUDA, and there is none here" in first
    assert 1 == done.stderr.count("Traceback")  # the script's own, which -q does not hide
