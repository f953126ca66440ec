"""The shape of the tree: links, budgets, names, and a test for each module."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PYTHON = sorted(
    path
    for folder in ("dptrace", "trainers", "viewers", "tests", "benchmarks")
    for path in (ROOT / folder).rglob("*.py")
)
OWN = [path for path in PYTHON if not any(parent.is_symlink() for parent in path.parents)]
SCRIPTS = [path for folder in ("viewers", "tests") for path in (ROOT / folder).rglob("*.*js")]
MOST_LINES, MOST_TRAINER_LINES = 400, 150
LONGEST_FUNCTION = 52
"""Lines with docstring and signature; about 30 is the aim."""


@pytest.mark.parametrize("name", ["trainers", "viewers"])
def test_links_lead_to_the_folders(name: str) -> None:
    """dptrace/trainers and dptrace/viewers are links to the folders beside the package."""
    link = ROOT / "dptrace" / name

    assert link.is_dir(), (
        f"dptrace/{name} is no link: git wrote it as a plain file. "
        "Run: git config core.symlinks true && git checkout -- dptrace"
    )
    assert (ROOT / name).resolve() == link.resolve()


@pytest.mark.parametrize("path", [*OWN, *SCRIPTS], ids=lambda path: str(path.relative_to(ROOT)))
def test_files_keep_their_budget(path: Path) -> None:
    """No file is longer than 400 lines, no trainer longer than 150."""
    most = MOST_TRAINER_LINES if "trainers" in path.relative_to(ROOT).parts[0] else MOST_LINES

    assert len(path.read_text(encoding="utf-8").splitlines()) <= most


@pytest.mark.parametrize("path", OWN, ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_keep_their_budget(path: Path) -> None:
    """No function has grown beyond a screen."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < LONGEST_FUNCTION, f"{path.name}: {node.name}"


def test_no_trainer_shadows_a_module() -> None:
    """torchrun puts a trainer's folder first on the path: a file called types.py there would break torch."""
    taken = set(sys.stdlib_module_names) | {"torch", "numpy", "click", "rich", "dptrace"}

    assert not taken & {path.stem for path in (ROOT / "trainers").glob("*.py")}


TESTED = [path for path in OWN if path.relative_to(ROOT).parts[0] != "tests" and path.parent.name != "benchmarks"]


@pytest.mark.parametrize("path", TESTED, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_has_its_test_file(path: Path) -> None:
    """tests/test_<room>_<module>.py stands for each module, or tests/test_<room>.py for a small room."""
    if path.name in ("__init__.py", "__main__.py", "errors.py", "timeline.py", "trace.py"):
        return  # words without behaviour; the first two are tested through the command line
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] == "dptrace" else parts
    names = {"_".join(parts[: i + 1]) for i in range(len(parts))}

    assert any((ROOT / "tests" / f"test_{name}.py").exists() for name in names), f"no test for {'/'.join(parts)}"


@pytest.mark.parametrize("path", sorted((ROOT / "tests").glob("test_*.py")), ids=lambda path: path.name)
def test_every_test_says_what_it_shows(path: Path) -> None:
    """Each test has a docstring."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            assert ast.get_docstring(node), node.name
