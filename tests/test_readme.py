"""The commands and examples of the README run as they are written."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^(<!-- not run: [^\n]+ -->\n)?```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
BLOCKS = _BLOCK.findall(README)
COMMANDS = [
    line
    for skipped, language, text in BLOCKS
    if language == "bash" and not skipped
    for line in text.splitlines()
    if line.strip() and not line.startswith("#")
]
EXAMPLES = [text for skipped, language, text in BLOCKS if language == "python" and not skipped]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder that holds what a clone holds and that the commands may write to."""
    here = tmp_path_factory.mktemp("clone")
    for name in ("traces", "docs", "trainers"):
        (here / name).symlink_to(ROOT / name)
    return here


def test_the_readme_has_commands_and_examples() -> None:
    """The blocks are found: an edit of their marks must not make the tests below empty."""
    assert len(COMMANDS) >= 8
    assert len(EXAMPLES) >= 2
    assert {"analyze", "view", "record", "diff", "export"} <= {line.split()[1] for line in COMMANDS}


@pytest.mark.spawn
@pytest.mark.slow
def test_every_command_runs(folder: Path) -> None:
    """One after the other, as someone who follows the README would type them."""
    scripts = str(Path(sys.executable).parent)
    environment = os.environ | {
        "PATH": f"{scripts}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "",
        "BROWSER": "true",
    }
    for line in COMMANDS:
        command = line.replace("dptrace ", f"{sys.executable} -m dptrace ", 1)
        done = subprocess.run(
            command, shell=True, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert 0 == done.returncode, f"{line}\n{done.stdout[-500:]}\n{done.stderr[-2000:]}"
    assert {"interleaved.html", "all.pftrace", "runs"} <= {path.name for path in folder.iterdir()}


@pytest.mark.slow
@pytest.mark.spawn
def test_every_example_runs(folder: Path) -> None:
    """With a tiny loader and model where an example has yours."""
    pytest.importorskip("torch", reason="an example records")
    yours = (
        "import torch\n"
        "model = torch.nn.Linear(4, 4)\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "loader = [torch.ones(2, 4)] * 20\n"
        "def train_step(batch):\n"
        "    model(batch).sum().backward()\n"
        "    optimizer.step()\n"
        "    optimizer.zero_grad()\n"
    )
    for text in EXAMPLES:
        code = yours + text if "train_step" in text else text
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=folder,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert 0 == done.returncode, f"{text}\n{done.stderr[-2000:]}"


def test_every_link_of_the_readme_leads_somewhere() -> None:
    """Files and pictures that the README names are there."""
    targets = re.findall(r"\]\(([^)#\s]+)", README)

    assert len(targets) > 15
    assert not [target for target in targets if "://" not in target and not (ROOT / target).exists()]
