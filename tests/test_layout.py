"""The shape of the tree: links, budgets, names, tests for each module. Each rule is one test."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.support.paths import ROOT

OWN = sorted(
    path
    for folder in ("dptrace", "trainers", "viewers", "tests", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
    if not any(parent.is_symlink() for parent in path.parents)
)
PRODUCT = [path for path in OWN if path.relative_to(ROOT).parts[0] in ("dptrace", "trainers", "viewers")]
SCRIPTS = [path for folder in ("viewers", "tests") for path in (ROOT / folder).rglob("*.*js")]
MOST_LINES, MOST_TRAINER_LINES, MOST_FUNCTION_LINES = 400, 150, 52
MOST_MODULES_IN_ROOT, MOST_MODULES_IN_ROOM = 8, 14
LARGER_ROOMS = {"trainers": "one file per way to train"}
"""Folders with more modules, and why."""
WITHOUT_TESTS = {"__init__.py", "__main__.py", "version.py"}
MOST_FILES_OF_A_PAGE = 20


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
    """No file is longer than 400 lines, no trainer longer than 150."""
    offenders = []
    for path in [*OWN, *SCRIPTS]:
        most = MOST_TRAINER_LINES if path.relative_to(ROOT).parts[0] == "trainers" else MOST_LINES
        lines = len(path.read_text(encoding="utf-8").splitlines())
        offenders += [f"{name_of(path)}: {lines} lines, at most {most}"] if lines > most else []

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
        if (node.end_lineno or 0) - node.lineno >= MOST_FUNCTION_LINES
    ]

    assert not offenders


def test_rooms_keep_their_budget() -> None:
    """The root of the package holds a handful of modules, a room about a dozen."""
    offenders = []
    for folder in sorted({path.parent for path in PRODUCT}):
        modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
        most = MOST_MODULES_IN_ROOT if folder == ROOT / "dptrace" else MOST_MODULES_IN_ROOM
        if len(modules) > most and name_of(folder) not in LARGER_ROOMS:
            offenders += [f"{name_of(folder)}: {len(modules)} modules, at most {most}"]

    assert not offenders


def test_static_folders_keep_their_budget() -> None:
    """A folder of scripts, style sheets and templates holds at most 20 files; larger ones are sorted by concern."""
    static = [path for path in (ROOT / "viewers").glob("*/static/**/*") if path.is_file()]
    counts = Counter(name_of(path.parent) for path in static)
    offenders = [
        f"{folder}: {count} files, at most {MOST_FILES_OF_A_PAGE}"
        for folder, count in sorted(counts.items())
        if count > MOST_FILES_OF_A_PAGE
    ]

    assert counts["viewers/gantt/static/data"]
    assert not offenders, "\n".join(offenders)


def test_no_trainer_shadows_a_module() -> None:
    """torchrun puts a trainer's folder first on the path: a file called types.py there would break torch."""
    taken = set(sys.stdlib_module_names) | {"torch", "numpy", "click", "rich", "dptrace"}

    assert not taken & {path.stem for path in (ROOT / "trainers").glob("*.py")}


def imports(paths: Iterable[Path]) -> set[str]:
    """List the modules and names that files import, as dotted names."""
    return {name for path in paths for name in _imports_of(path)}


@cache
def _imports_of(path: Path) -> frozenset[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts if parts[0] == "dptrace" else ("dptrace", *parts))


@pytest.mark.heavy
def test_every_module_is_tested_in_its_room() -> None:
    """tests/<room>/ holds test_<module>.py, or a test that imports the module or one of the room that imports it."""
    rooms: dict[str, list[Path]] = {}
    for path in PRODUCT:
        rooms.setdefault(module_of(path).rpartition(".")[0], []).append(path)
    offenders = []
    for name, paths in rooms.items():
        if name == "dptrace.trainers":  # tests/trainers/test_trainers.py runs every mode
            continue
        folder = ROOT.joinpath("tests", *name.split(".")[1:])
        tested = imports(folder.rglob("test_*.py") if name != "dptrace" else folder.glob("test_*.py"))
        tested |= imports((ROOT / "trainers").glob("*.py")) if name.startswith("dptrace.trainers") else set()
        for _ in paths:
            tested |= imports(path for path in paths if module_of(path) in tested)
        offenders += [
            f"{name_of(path)} is not tested in {name_of(folder)}"
            for path in paths
            if path.name not in WITHOUT_TESTS
            and module_of(path) not in tested
            and not (folder / f"test_{path.name}").exists()
        ]

    assert not offenders, "\n".join(offenders)


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
