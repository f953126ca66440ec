"""The shape of the tree: links, budgets, names. Each rule is one test."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.paths import ROOT

OWN = sorted(
    path
    for folder in ("dptrace", "trainers", "viewers", "tests", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
    if not any(parent.is_symlink() for parent in path.parents)
)
SCRIPTS = [path for folder in ("viewers", "tests") for path in (ROOT / folder).rglob("*.*js")]
MAX_LINES, MAX_TRAINER_LINES, MAX_FUNCTION_LINES = 800, 150, 60


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("name", ["trainers", "viewers"])
def test_links_lead_to_the_folders(name: str) -> None:
    """dptrace/trainers and dptrace/viewers are links to the folders beside the package."""
    link = ROOT / "dptrace" / name

    assert link.is_dir(), (
        f"dptrace/{name} is not a link: git wrote it as a plain file. "
        "Run: git config core.symlinks true && git checkout -- dptrace"
    )
    assert (ROOT / name).resolve() == link.resolve()


def test_files_keep_their_budget() -> None:
    """No file is longer than 800 lines, no trainer longer than 150."""
    offenders = []
    for path in [*OWN, *SCRIPTS]:
        most = MAX_TRAINER_LINES if path.parent == ROOT / "trainers" else MAX_LINES
        lines = len(path.read_text(encoding="utf-8").splitlines())
        offenders += [f"{name_of(path)}: {lines} lines, at most {most}"] if lines > most else []

    assert not offenders


def test_folders_are_worth_their_level() -> None:
    """A folder below a room has at least four modules, and is at most two levels below it."""
    modules = [path for path in OWN if path.relative_to(ROOT).parts[0] not in ("tests", "benchmarks")]
    offenders = []
    for folder in sorted({path.parent for path in modules}):
        parts = folder.relative_to(ROOT).parts
        room = 1 if parts[0] != "dptrace" else 3 if parts[1:2] == ("analysis",) else 2
        count = sum(path.parent == folder and path.name != "__init__.py" for path in modules)
        if len(parts) > room and (count < 4 or len(parts) > room + 2):
            offenders.append(f"{name_of(folder)}: {count} modules")

    assert not offenders


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.heavy
def test_functions_keep_their_budget() -> None:
    """No function, with signature and docstring, is longer than a screen; about 30 lines is the aim."""
    offenders = [
        f"{name_of(path)}: {node.name}"
        for path in OWN
        for node in functions(path)
        if (node.end_lineno or 0) - node.lineno >= MAX_FUNCTION_LINES
    ]

    assert not offenders


def test_no_trainer_shadows_a_module() -> None:
    """torchrun puts a trainer's folder first on the path: a file called types.py there would break torch."""
    taken = set(sys.stdlib_module_names) | {"torch", "numpy", "click", "rich", "dptrace"}

    assert not taken & {path.stem for path in (ROOT / "trainers").glob("*.py")}


@pytest.mark.heavy
def test_every_test_says_what_it_shows() -> None:
    """Each test has a docstring."""
    offenders = [
        f"{name_of(path)}: {node.name}"
        for path in OWN
        if path.name.startswith("test_")
        for node in functions(path)
        if node.name.startswith("test_") and not ast.get_docstring(node)
    ]

    assert not offenders
