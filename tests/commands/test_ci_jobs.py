"""The jobs of the guide to continuous integration: their commands run as they are written there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import yaml

from tests.support.examples import small
from tests.support.forking import folder_of_command
from tests.support.paths import ROOT
from tests.support.processes import finished

pytestmark = [pytest.mark.spawn, pytest.mark.slow]

GITHUB, GITLAB = (
    yaml.safe_load(block)
    for block in re.findall(
        r"^```yaml\n(.*?)^```$", (ROOT / "docs/guides/ci.md").read_text(encoding="utf-8"), re.M | re.S
    )
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with a training script, whose branch *slower* sleeps in each step."""
    pytest.importorskip("torch", reason="the jobs record")
    script = small("train.py")
    git(tmp_path, "init", "-q", "-b", "main")
    for branch, text in (
        ("main", script),
        ("slower", script.replace("        loss.backward()", "        loss.backward(); import time; time.sleep(0.1)")),
    ):
        git(tmp_path, "checkout", "-q", "-B", branch)
        (tmp_path / "train.py").write_text(text, encoding="utf-8")
        git(tmp_path, "add", "train.py")
        git(tmp_path, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", branch)
    return tmp_path


def git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=folder, check=True, timeout=60)


def run(commands: list[str], folder: Path, **variables: str) -> int:
    """Run the commands of a job but its installation, with two runs instead of three, until one fails."""
    scripts = str(Path(sys.executable).parent)
    folders = os.pathsep.join(filter(None, (folder_of_command(), scripts, os.environ["PATH"])))
    path = {"PATH": folders, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    for command in commands:
        if command.startswith("pip install"):
            continue
        bash = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", command.replace("1 2 3", "1 2")]
        done = finished(bash, 240, cwd=folder, env=os.environ | path | variables)
        if done.returncode:
            return done.returncode
    return 0


def failures(report: Path) -> int:
    return int(ElementTree.parse(report).getroot().get("failures", "-1"))


def test_the_workflow_of_github(project: Path) -> None:
    """A branch that sleeps in each step fails it, and the summary says so."""
    git(project, "update-ref", "refs/remotes/origin/main", "main")
    git(project, "checkout", "-q", "--detach", "slower")
    steps: list[dict[str, Any]] = GITHUB["jobs"]["step-time"]["steps"]
    variables = {"GITHUB_BASE_REF": "main", "GITHUB_STEP_SUMMARY": str(project / "summary.md")}

    assert 3 == run([step["run"] for step in steps if "run" in step], project, **variables)
    assert failures(project / "step-time.xml") > 0
    assert "✗ wall > +5%: crossed" in (project / "summary.md").read_text(encoding="utf-8")
    assert (project / "step-time.html").stat().st_size > 10_000


def test_the_job_of_gitlab(project: Path) -> None:
    """On the default branch it saves a baseline, with which the branch that sleeps is compared, and fails."""
    script = GITLAB["step-time"]["script"]
    git(project, "checkout", "-q", "main")
    assert 0 == run(script, project, CI_COMMIT_BRANCH="main", CI_DEFAULT_BRANCH="main")
    assert [".dptrace/"] == GITLAB["step-time"]["cache"]["paths"]
    assert (project / ".dptrace/baselines/main.json").stat().st_size < 200_000

    shutil.rmtree(project / "runs")
    git(project, "checkout", "-q", "slower")
    assert 3 == run(script, project, CI_COMMIT_BRANCH="", CI_DEFAULT_BRANCH="main")
    assert failures(project / GITLAB["step-time"]["artifacts"]["reports"]["junit"]) >= 1
