"""The arrows of the design: who may import whom, and what the light paths must not load."""

from __future__ import annotations

import ast
import json
import resource
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HEAVY = {"torch", "bokeh", "tornado", "pandas"}

# Which room each module is in; a new module gets its line here.
READING = {"wide", "trace", "source", "textstream", "columns", "kineto", "sources"}
READING |= {"document", "plausible", "repair"}
READING |= {"gloo_groups"}
READING |= {"events", "messages", "microseconds", "chunks"}
READING |= {"address", "archive", "remote", "packets", "slices", "pftrace"}
TIMELINE = {"timeline", "launches", "phases", "recompute", "steps", "collectives", "gloo", "build"}
FIGURES = {"intervals", "split", "idle", "device", "findings", "run", "select"}
FIGURES |= {"noise", "sides", "changes", "differs", "diff", "thresholds"}
FIGURES |= {"aligned_steps", "telling_ranks"}
FIGURES |= {"grid", "kinds"}
TIMELINE |= {"pipeline"}
FIGURES |= {"bubble", "experts"}
OPENING = {"rankfile", "packed", "cache", "workers", "gather", "scaleout", "opening"}
FOUNDATION = {"errors", "legible", "processes", "reading", "__init__"}
COMMAND_LINE = {"cli", "__main__", "doctor"}
ROOMS = {
    **dict.fromkeys(READING, "reading"),
    **dict.fromkeys(TIMELINE, "timeline"),
    **dict.fromkeys(FIGURES, "figures"),
    **dict.fromkeys(OPENING, "opening"),
    **dict.fromkeys(FOUNDATION, "foundation"),
    **dict.fromkeys(COMMAND_LINE, "command line"),
    "ranks": "figures",
    "commands": "commands",
    "record": "record",
    "model": "model",
    "bench": "bench",
    "trainers": "trainers",
    "viewers": "viewers",
    "exports": "viewers",
    "hta": "hta",
    "hta_compat": "hta",
}
# What a room may import, beside itself, the foundation, and (everybody) interval arithmetic.
ALLOWED = {
    "foundation": {"figures", "opening"},
    "reading": set(),
    "timeline": {"reading"},
    "figures": {"timeline", "model"},
    "opening": {"reading", "timeline", "figures"},
    "hta": {"reading", "figures"},
    "record": set(),
    "model": set(),
    "bench": {"record", "model", "opening", "figures"},
    "trainers": {"record"},
    "viewers": {"figures", "timeline"},
    "commands": {"reading", "timeline", "figures", "opening", "hta", "record", "model", "bench"}
    | {"trainers", "viewers", "command line"},
    "command line": {"record", "viewers"},
}


# Run.hta() hands the run to HTA's room, Run.view() to the viewers; nothing else among the figures knows of them.
EXCEPTIONS = {("run", "hta"), ("run", "viewers")}


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] == "dptrace" else parts
    return parts[0]


def imports(path: Path) -> set[str]:
    """Give the modules of dptrace that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "dptrace":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("dptrace.")}
    return found


SOURCES = sorted(
    path
    for folder in ("dptrace", "trainers", "viewers")
    for path in (ROOT / folder).rglob("*.py")
    if not {"dptrace/trainers", "dptrace/viewers"}
    & {str(p.relative_to(ROOT)) for p in path.parents if ROOT in p.parents}
)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_arrows_point_one_way(path: Path) -> None:
    """A room imports only the rooms that the design lets it know."""
    module = module_of(path)
    room = ROOMS[module]
    for other in imports(path):
        target = ROOMS.get(other)
        if target is None or target in (room, "foundation") or other == "intervals" or (module, other) in EXCEPTIONS:
            continue
        assert target in ALLOWED[room], f"{path.name} ({room}) imports dptrace.{other} ({target})"


def loaded(statement: str) -> set[str]:
    code = f"{statement}\nimport json, sys; print(json.dumps(sorted(sys.modules)))"
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT)
    return set(json.loads(out.stdout))


@pytest.mark.parametrize("module", ["dptrace", "dptrace.cli", "dptrace.record"])
def test_light_imports_load_nothing_heavy(module: str) -> None:
    """Importing dptrace, its command line or its recorder loads neither torch, nor Bokeh, nor pandas, nor NumPy."""
    assert not loaded(f"import {module}") & (HEAVY | {"numpy"})


def test_reading_a_trace_loads_no_pictures_and_no_torch() -> None:
    """The whole analysis runs without Bokeh and torch; pandas comes only with a table."""
    names = loaded("import dptrace.opening")

    assert not names & HEAVY
    assert not [name for name in names if name.startswith(("dptrace.viewers", "dptrace.trainers", "dptrace.commands"))]


@pytest.mark.parametrize("arguments", [["--help"], ["analyze", "--help"], ["record", "--help"], ["view", "--help"]])
def test_help_is_light(arguments: list[str]) -> None:
    """Help of any verb loads nothing heavy."""
    out = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "dptrace", *arguments], check=True, capture_output=True, text=True
    )
    imported = {line.rsplit("|", 1)[-1].strip().split(".")[0] for line in out.stderr.splitlines() if "|" in line}
    assert not imported & (HEAVY | {"numpy"})


def test_help_takes_under_a_third_of_a_second_of_cpu() -> None:
    """The median CPU time of `dptrace --help` over five runs is below 0.3 s."""
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "dptrace", "--help"], check=True, capture_output=True, cwd=ROOT)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    assert sorted(times)[2] < 0.3
