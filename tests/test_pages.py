"""The commands of the README and the documentation run as they are written, and so do the README's examples."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from dptrace.commands.shared.main import cli
from tests.model.planning.test_documents import COMMAND, ROWS
from tests.support.examples import EXAMPLES, small
from tests.support.forking import folder_of_command, run_python
from tests.support.paths import ROOT
from tests.support.processes import finished

README = (ROOT / "README.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^(<!-- not run: [^\n]+ -->\n)?```(bash|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MEASURES = re.compile(r"dptrace (bench|links|record|sweep)\b|dptrace \w+ runs/")

_TRAINER = re.compile(r"^(\s*dptrace record --mode (?!.*--model (?!medium)).*)$", re.MULTILINE)
"""Records a model of 10 million parameters."""

# In the README's order: who starts with dptrace reads one after the other.
START = ["README.md", *dict.fromkeys(re.findall(r"docs/start/\w+\.md", README))]
GUIDES = sorted(
    str(page.relative_to(ROOT)) for kind in ("guides", "tutorials") for page in (ROOT / "docs" / kind).glob("*.md")
)


def blocks(page: str, language: str = "bash") -> dict[str, str]:
    """Return the blocks of *page* that its readers can run, by their place."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return {
        f"{page}:{text.count(chr(10), 0, found.start(2)) + 1}": found[3]
        for found in _BLOCK.finditer(text)
        if found[2] == language and not found[1]
    }


def of_the_documents() -> list[str]:
    """Return the commands in the tables of the documents' numbers, once each."""
    rows = [line for line in (ROOT / "docs" / "documents.md").read_text(encoding="utf-8").splitlines() if "|" in line]
    return list(dict.fromkeys(re.findall(r"`(dptrace [^`]+)`", "\n".join(rows))))


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Make folders that hold what a clone holds and that commands may write to: one for START, one a guide."""

    @cache
    def made(name: str) -> Path:
        here = tmp_path_factory.mktemp("clone")
        for folder in ("traces", "trainers"):
            (here / folder).symlink_to(ROOT / folder)
        (here / "docs" / "examples").mkdir(parents=True)
        for path in EXAMPLES.glob("*.py"):
            (here / "docs" / "examples" / path.name).write_text(small(path.name), encoding="utf-8")
        for path in (ROOT / "docs").iterdir():
            if path != EXAMPLES:
                (here / "docs" / path.name).symlink_to(path)
        return here

    return lambda page: made("start" if page in START else page)


def _environment(folder: Path) -> dict[str, str]:
    scripts = str(Path(sys.executable).parent)
    return os.environ | {
        "PATH": os.pathsep.join(filter(None, (folder_of_command(), scripts, os.environ["PATH"]))),
        "PYTHONPATH": str(ROOT),
        "CUDA_VISIBLE_DEVICES": "",
        "BROWSER": "true",
        "DPTRACE_CACHE": str(folder / "cache"),
    }


def run(command: list[str], folder: Path) -> None:
    """Run *command* in the folder, without a GPU or a browser; show what it said where it fails."""
    done = finished(command, cwd=folder, env=_environment(folder))
    assert 0 == done.returncode, f"{command[-1]}\n{done.stdout[-500:]}\n{done.stderr[-2000:]}"


def _small(block: str) -> str:
    """Return the commands with the smallest model where one trains the default one."""
    return _TRAINER.sub(r"\1 --model small", block)


def test_every_page_is_found() -> None:
    """An edit of the blocks' marks, or a page that no list names, must not make the tests below empty."""
    commands = "\n".join(blocks("README.md").values())

    assert {"README.md", *(f"docs/start/{page.name}" for page in (ROOT / "docs" / "start").iterdir())} == set(START)
    assert {"analyze", "view", "record", "diff", "export"} <= set(re.findall(r"^dptrace (\w+)", commands, re.MULTILINE))
    assert len(blocks("README.md", "python")) >= 2
    assert len(of_the_documents()) > 80
    assert sum(len(blocks(page)) for page in GUIDES) > 30


@pytest.mark.spawn
@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "block"),
    [pytest.param(page, text, id=place) for page in (*START, *GUIDES) for place, text in blocks(page).items()],
)
def test_every_command_runs(page: str, block: str, clone: Callable[[str], Path]) -> None:
    """One after the other, as someone who reads the page in a fresh clone would type them, but with small models."""
    run(["bash", "-e", "-v", "-c", _small(block)], clone(page))


@pytest.mark.slow
@pytest.mark.spawn
def test_make_demo_runs(clone: Callable[[str], Path]) -> None:
    """What `make demo` does after it has installed everything: a run, its split, its Gantt page."""
    folder = clone("demo")
    target = (ROOT / "Makefile").read_text(encoding="utf-8").split("\ndemo:")[1].split("\n\n")[0]
    commands = [line.strip().replace("$(BIN)/", "").replace("$(GPUS)", "2") for line in target.splitlines()[1:]]
    run(["bash", "-ec", _small("\n".join(commands))], folder)

    assert ["dptrace record", "dptrace analyze", "dptrace view"] == [" ".join(c.split()[:2]) for c in commands]
    assert (folder / "demo" / "interleaved.html").stat().st_size > 100_000


@pytest.mark.slow
@pytest.mark.spawn
@pytest.mark.parametrize("folder", [".", "docs/tutorials"])
def test_the_notebook_runs(folder: str, clone: Callable[[str], Path]) -> None:
    """Each cell in order, in the notebook's folder, where Jupyter runs it, or the clone's; one that fails fails."""
    cells = json.loads((ROOT / "docs" / "tutorials" / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    start = "from IPython.core.interactiveshell import InteractiveShell as Shell\nimport os\nshell = Shell.instance()\n"
    start += f"os.chdir({folder!r})\n"
    program = start + "".join(f"shell.run_cell({source!r}).raise_error()\n" for source in sources)

    assert len(sources) > 5
    run([sys.executable, "-c", program], clone("notebook"))


@pytest.mark.slow
def test_every_command_of_the_documents_runs(clone: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that measure, which would take hours, and of what reads their runs only the options are looked at.

    Those of rows with a printed number run where the number is read.
    """
    monkeypatch.chdir(clone("documents"))
    elsewhere = {command for row in ROWS if "`" in row[2] for command in COMMAND.findall(row[1])}
    for line in sorted({*of_the_documents()} - elsewhere):
        only_parsed = ["--help"] if _MEASURES.match(line) else []
        done = CliRunner().invoke(cli, [*shlex.split(line)[1:], *only_parsed])
        assert 0 == done.exit_code, f"{line}\n{done.output[-2000:]}"


@pytest.mark.slow
@pytest.mark.spawn
def test_every_example_runs(clone: Callable[[str], Path]) -> None:
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
    folder = clone("examples")
    for text in blocks("README.md", "python").values():
        (folder / "example.py").write_text(yours + text if "train_step" in text else text, encoding="utf-8")
        done = run_python("example.py", cwd=folder, env=_environment(folder))
        assert 0 == done.returncode, f"{text}\n{done.stderr[-2000:]}"


def test_every_link_of_the_readme_leads_somewhere() -> None:
    """Files and pictures that the README names are there."""
    targets = re.findall(r"\]\(([^)#\s]+)", README)

    assert len(targets) > 15
    assert not [target for target in targets if "://" not in target and not (ROOT / target).exists()]
