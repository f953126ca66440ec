"""The rooms: which package may import which, without a cycle, and what the light paths must not load."""

from __future__ import annotations

import ast
import json
import os
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.support.paths import ROOT

HEAVY = {"torch", "bokeh", "tornado", "pandas"}

GROUND = {"core", "errors", "version"}
FIGURES = ("timeline", "model", "per_gpu", "memory", "matching", "cross_rank")


def _rooms() -> dict[str, set[str]]:
    """Read the table of rooms in docs/architecture.md: what the modules of each may import beyond their own room."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text.partition("## Rooms\n")[2].partition("\n## ")[0]
    rows = [
        (row[0], row[1].split(", ")) for row in re.findall(r"^\| `(.+?)` \| .* \| ([^|]+?) \|$", section, re.MULTILINE)
    ]
    full = {name.rpartition("/")[2]: name for name, _ in rows}
    rooms: dict[str, set[str]] = {"errors": set(), "version": set()}
    for name, words in rows:
        below = {"–": set[str](), "all above": {*rooms}}.get(words[0])
        listed = [known for word in words for known in (FIGURES if word == "figures" else (word,))]
        rooms[name] = {full[word] for word in listed} if below is None else below
        rooms[name] |= GROUND - {"core", "version"} if name == "core" else GROUND
    return rooms


MAY_IMPORT = _rooms()

# The folders of the Gantt page's scripts, from the bottom up; "." has the entry point.
SCRIPT_FOLDERS = (
    *("data", "served", "stage", "drawing", "saving", "interaction"),
    *("memory", "critical_path", "host", "page", "."),
)


def modules() -> Iterator[tuple[str, Path]]:
    """List all modules of the product as dotted names, and their files."""
    for folder in ("dptrace", "trainers", "viewers"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not any(parent.is_symlink() for parent in path.parents):
                name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
                yield (name if folder == "dptrace" else f"dptrace.{name}"), path


MODULES = dict(modules())


def room(module: str) -> str:
    """Name the room of a module: its package, or the module itself where it lies in the root."""
    parts = module.split(".")[1:] or ["__init__"]
    return "/".join(parts[:2]) if parts[0] == "analysis" and len(parts) > 2 else parts[0]


def imports(path: Path) -> set[str]:
    """List the modules of dptrace that a file imports, also in its functions and for type checkers."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "dptrace":
            assert node.module
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "dptrace"}
    return found


@pytest.mark.heavy
def test_rooms_import_only_what_lies_below() -> None:
    """Each room imports only the rooms that its line lists; all offenders are named at once."""
    offenders = [
        f"{module} imports {other}: {room(module)} may not know {room(other)}"
        for module, path in MODULES.items()
        for other in sorted(imports(path))
        if room(other) not in {room(module), *MAY_IMPORT[room(module)]}
    ]

    assert not offenders, "\n".join(offenders)


def test_the_rooms_have_an_order() -> None:
    """The table itself allows no cycle."""
    TopologicalSorter(MAY_IMPORT).prepare()


@pytest.mark.heavy
def test_the_folders_of_viewers_have_an_order() -> None:
    """Their folders, such as views/steps and terminal/tables, import one another in one direction too."""
    arrows: dict[str, set[str]] = {}
    for module, path in MODULES.items():
        if room(module) == "viewers" and path.name != "__init__.py":
            folder = module.rpartition(".")[0]
            others = {other.rpartition(".")[0] for other in imports(path) if room(other) == "viewers"}
            arrows[folder] = arrows.get(folder, set()) | others - {folder}

    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


@pytest.mark.heavy
def test_no_module_is_part_of_a_cycle() -> None:
    """Following every import, lazy ones and those for type checkers too, no module comes back to itself."""
    arrows = {module: imports(path) - {module} for module, path in MODULES.items()}
    try:
        TopologicalSorter(arrows).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_scripts_import_only_folders_below() -> None:
    """A script of the Gantt page imports only scripts of its own folder and of those listed before it."""
    static = ROOT / "viewers" / "gantt" / "static"
    height = {static / name: place for place, name in enumerate(SCRIPT_FOLDERS)}
    offenders = []
    for path in sorted(static.rglob("*.js")):
        for name in re.findall(r'^import .* from "([^"]+)";$', path.read_text(encoding="utf-8"), re.MULTILINE):
            imported = Path(os.path.normpath(path.parent / name))
            if imported.is_relative_to(static) and height[imported.parent] > height[path.parent]:
                offenders.append(f"{path.relative_to(static)} imports {imported.relative_to(static)}")

    assert not offenders, "\n".join(offenders)


def test_every_room_is_in_the_table() -> None:
    """A new package gets its line, and no line stands for a package that is gone."""
    assert set(MAY_IMPORT) == {room(module) for module in MODULES} - {"analysis"}


@pytest.mark.heavy
def test_architecture_names_what_there_is() -> None:
    """Each path and identifier in code font there exists, and `NAME` in `FILE.py` is a word of that file."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    folders = ("dptrace", "trainers", "viewers", "tests", "benchmarks", "docs")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.*")]
    scripts = (path for path in files if path.suffix == ".js" or "tests" in path.parts)
    words = {
        str(path): {*re.findall(r"\w+", path.read_text(encoding="utf-8"))}
        for path in (*MODULES.values(), *scripts)
        if path.suffix in (".py", ".js")
    }
    paths, known = "".join(f"{path}/\n" for path in files), set[str]().union(*words.values())
    named = {name.strip("/()") for name in re.findall(r"`([\w./]+(?:\(\))?)`", text)} - {"trainers/NAME.py"}
    of_file = {name for name in named if "/" in name or name.endswith((".py", ".csv", ".md"))}
    missing = [name for name in of_file if f"/{name}/" not in paths and not (ROOT / name).exists()]
    missing += [name for name in named - of_file if not {*name.split(".")} <= known]
    missing += [
        f"{name} in {file}"
        for name, file in re.findall(r"`(\w+)`(?: and `\w+`)? in `(\S+\.py)`", text)
        if not any(path.endswith(f"/{file}") and name in own for path, own in words.items())
    ]

    assert [] == missing


def loaded(statement: str) -> set[str]:
    code = f"{statement}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    return set(json.loads(out.stdout))


@pytest.mark.parametrize("module", ["dptrace", "dptrace.commands.shared.main", "dptrace.record"])
def test_light_imports_load_nothing_heavy(module: str) -> None:
    """Importing dptrace, its command line or its recorder loads neither torch, nor Bokeh, nor pandas, nor NumPy."""
    assert not loaded(f"import {module}") & (HEAVY | {"numpy"})


@pytest.mark.heavy
def test_reading_a_trace_loads_no_pictures_and_no_torch() -> None:
    """The whole analysis runs without Bokeh and torch, and so does the terminal's chart; pandas comes with a table."""
    names = loaded("import dptrace.load.open")

    assert not (names | loaded("import dptrace.viewers.terminal.gantt")) & HEAVY
    assert not [name for name in names if name.startswith(("dptrace.viewers", "dptrace.trainers", "dptrace.commands"))]


@pytest.mark.heavy
@pytest.mark.parametrize("arguments", [["--help"], ["analyze", "--help"], ["record", "--help"], ["view", "--help"]])
def test_help_is_light(arguments: list[str]) -> None:
    """Help of any verb loads nothing heavy."""
    out = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "dptrace", *arguments], check=True, capture_output=True, text=True
    )
    imported = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in out.stderr.splitlines() if "|" in line}
    assert not imported & (HEAVY | {"numpy"})


@pytest.mark.heavy
def test_help_takes_little_cpu_time() -> None:
    """The least CPU time of `dptrace --help` over five runs is below 0.2 s."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "dptrace", "--help"], check=True, capture_output=True, cwd=ROOT)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    assert min(times) < 0.2
