"""What `pip install` installs."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder
from hatchling.metadata.core import ProjectMetadata

from dptrace.errors import EXTRAS, MissingExtraError
from tests.support.paths import ROOT


@pytest.mark.heavy
def test_the_wheel_holds_trainers_and_viewers_as_plain_files(tmp_path: Path) -> None:
    """The links become folders, the pages' scripts and styles are included, and the only package is dptrace."""
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])

    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    modules = {"trainers/ddp.py", "viewers/gantt/page/document.py", "commands/shared/main.py"}
    assert {f"dptrace/{module}" for module in modules} <= set(names)
    assert "dptrace/py.typed" in names
    pages = [file for file in (ROOT / "viewers").glob("*/static/**/*") if file.is_file()]
    assert ROOT / "viewers/gantt/static/data/lod.js" in pages
    for file in pages:
        assert f"dptrace/{file.relative_to(ROOT)}" in names
    assert {"dptrace"} == {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert os.path.getsize(wheel) < 1_800_000


USER_SCRIPT = """
import dptrace

run = dptrace.open("runs/ddp")
reveal_type(run)
reveal_type(dptrace.compare(run, run).summary())
reveal_type(run.ranks)
dptrace.open(1, 2)
run.no_such_method()
reveal_type(dptrace.record.step)
"""


@pytest.mark.heavy
def test_a_users_script_is_checked_against_the_wheels_types(tmp_path: Path) -> None:
    """In an environment with the wheel, mypy knows the types of the public API and finds mistakes in its use."""
    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    venv.create(tmp_path / "venv", symlinks=True)
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    assert (packages / "dptrace" / "py.typed").is_file()
    (tmp_path / "script.py").write_text(USER_SCRIPT)

    options = ["--python-executable", str(tmp_path / "venv" / "bin" / "python"), "--cache-dir", str(tmp_path / "cache")]
    command = [sys.executable, "-m", "mypy", "--config-file=", *options, "script.py"]
    out = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False).stdout

    assert 'Revealed type is "dptrace.api.Run"' in out
    assert 'Revealed type is "str"' in out.replace("builtins.str", "str")
    assert re.search(r'Revealed type is "(builtins\.)?tuple\[(builtins\.)?int, \.\.\.\]"', out)
    assert 'script.py:8: error: Argument 1 to "open"' in out
    assert 'error: "Run" has no attribute "no_such_method"' in out
    assert 'script.py:10: note: Revealed type is "def (loss: ' in out


def test_the_core_stays_light() -> None:
    """Without an extra, neither torch nor Jupyter nor Holistic Trace Analysis is required."""
    needed = [text for text in importlib.metadata.requires("dptrace") or [] if "extra ==" not in text]
    names = {re.split(r"[^A-Za-z0-9_-]", text)[0].lower() for text in needed}

    light = {"bokeh", "click", "isal", "jinja2", "msgspec", "numpy", "pandas", "perfetto", "platformdirs", "protobuf"}
    assert names <= {*light, "rich"}


def test_advice_installs_what_an_extra_needs() -> None:
    """An error names the packages of its extra as pyproject.toml does, none of them in vain."""
    extras = ProjectMetadata(str(ROOT), None).config["project"]["optional-dependencies"]

    assert {name: tuple(extras[name]) for name in EXTRAS} == EXTRAS
    assert str(MissingExtraError("This", "azure")).endswith(": pip install 'adlfs>=2024.2' 'fsspec>=2024.2'")


def test_nothing_advises_to_install_dptrace_from_the_index() -> None:
    """There its name may be anybody's: in code and documents, pip installs it from a folder or a file."""
    texts = [path for folder in ("dptrace", "viewers", "docs") for path in (ROOT / folder).rglob("*.[pm][yd]")]
    lines = {path: path.read_text(encoding="utf-8").splitlines() for path in (ROOT / "README.md", *texts)}

    assert 300 < len(lines)
    assert not [
        f"{path}: {line}" for path in lines for line in lines[path] if re.search(r"pip install.*[ '\"]dptrace\b", line)
    ]
