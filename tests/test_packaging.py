"""What `pip install` installs."""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder
from hatchling.metadata.core import ProjectMetadata
from hatchling.plugin.manager import PluginManager

from dptrace import __version__
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
    folders = "static", "fonts"
    pages = [file for name in folders for file in (ROOT / "viewers").glob(f"*/{name}/**/*") if file.is_file()]
    assert {ROOT / "viewers/gantt/static/data/lod.js", ROOT / "viewers/base/fonts/OFL.txt"} <= set(pages)
    for file in pages:
        assert f"dptrace/{file.relative_to(ROOT)}" in names
    assert {"dptrace"} == {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert os.path.getsize(wheel) < 2_000_000


@pytest.mark.slow
def test_the_sdist_holds_what_tests_and_docs_need_and_builds_the_same_wheel(tmp_path: Path) -> None:
    """Unpacked, it has tests, docs, traces, trainers and viewers where a clone has them, and nothing that is built."""
    (sdist,) = SdistBuilder(str(ROOT)).build(directory=str(tmp_path))
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "unpacked", filter="data")
    (root,) = (tmp_path / "unpacked").iterdir()
    files = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    wheels = [
        next(WheelBuilder(str(folder)).build(directory=str(tmp_path / name), versions=["standard"]))
        for name, folder in (("clone", ROOT), ("sdist", root))
    ]

    for folder in ("benchmarks", "docs", "dptrace", "tests", "traces", "trainers", "viewers"):
        assert {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*.[pm][yd]")} - files <= {
            str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "reference" / "cli").glob("*.md")
        }
    assert not [name for name in files if "__pycache__" in name or name.startswith((".git/", ".venv", "build/"))]
    assert Path(wheels[0]).read_bytes() == Path(wheels[1]).read_bytes()


def test_the_index_shows_the_readme_with_links_to_files_that_there_are() -> None:
    """Each relative link is absolute there: to this version's file in the repository that the metadata names."""
    core = ProjectMetadata(str(ROOT), PluginManager()).core
    links = re.findall(r"\]\(([^)]*)\)", core.readme)
    base = re.escape(core.urls["Repository"])
    places = [match for link in links if (match := re.match(rf"{base}/(blob|raw)/v{__version__}/([^#]+)", link))]

    assert len(places) > 30
    assert not [match[0] for match in places if not (ROOT / match[2]).exists()]
    assert {".png"} == {Path(match[2]).suffix for match in places if match[1] == "raw"}
    assert not [link for link in links if not link.startswith(("https://", "#"))]


def test_each_description_of_the_release_says_the_same() -> None:
    """Citation and changelog have its version and date, the conda recipe its version and requirements."""
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("CITATION.cff", "CHANGELOG.md")}
    recipe = (ROOT / "conda" / "recipe.yaml").read_text(encoding="utf-8")
    dependencies = ProjectMetadata(str(ROOT), None).config["project"]["dependencies"]
    released = re.search(r'^version: (.*)\ndate-released: "(.*)"$', texts["CITATION.cff"], re.MULTILINE)
    of_conda = re.search(r"  run:\n(?:    - .*\n)+", recipe)

    assert released is not None
    assert of_conda is not None
    assert __version__ == released[1]
    assert f"\n## {released[1]} ({released[2]})\n" in texts["CHANGELOG.md"]
    assert f'version: "{__version__}"' in recipe
    needed = {line.strip()[2:].removeprefix("python-").replace(" ", "") for line in of_conda[0].splitlines()[2:]}
    assert {text.split(";")[0] for text in dependencies} == needed


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


@pytest.mark.slow
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
    assert names <= {*light, "resvg-py", "rich"}


def test_advice_installs_what_an_extra_needs() -> None:
    """An error names the packages of its extra as pyproject.toml does, none of them in vain."""
    extras = ProjectMetadata(str(ROOT), None).config["project"]["optional-dependencies"]

    assert {name: tuple(extras[name]) for name in EXTRAS} == EXTRAS
    assert str(MissingExtraError("This", "azure")).endswith(": pip install 'adlfs>=2024.2' 'fsspec>=2024.2'")


@pytest.mark.heavy
def test_nothing_advises_to_install_dptrace_from_the_index() -> None:
    """There its name may be anybody's: in code and documents, pip installs it from a folder or a file."""
    texts = [path for folder in ("dptrace", "viewers", "docs") for path in (ROOT / folder).rglob("*.[pm][yd]")]
    lines = {path: path.read_text(encoding="utf-8").splitlines() for path in (ROOT / "README.md", *texts)}

    assert 300 < len(lines)
    assert not [
        f"{path}: {line}" for path in lines for line in lines[path] if re.search(r"pip install.*[ '\"]dptrace\b", line)
    ]
