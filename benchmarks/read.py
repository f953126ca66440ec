"""Measure the cost of reading and splitting a trace, against a lower bound and against Holistic Trace Analysis.

    python benchmarks/read.py SMALL LARGE [--hta PYTHON] [--keep FOLDER]

SMALL and LARGE are two ranks' trace files; LARGE's steps are repeated with shifted times and correlation ids, by
default 5 and 46 times. The CPU seconds, peak memory and wall time of whole processes are measured in turns, as medians
of three runs (one run above two million events).

floor       gunzip with isal and one typed decode with msgspec, one thread: the lower bound
dptrace     dptrace analyze -q --no-cache, with --jobs 1 and with all cores, and with --jobs 1 --json
from cache  dptrace analyze -q of a file that was read before, with and without --json
HTA         import, load, temporal breakdown and overlap, in the Python that --hta names

The first rows are of one of this repository's small runs: what a command costs besides reading. All run from bytecode,
as an installed dptrace does. The last rows, alone with --spellings, are of LARGE's events as other tools write them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import count, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

FLOOR = """
import sys, msgspec
from isal import igzip
class Args(msgspec.Struct, gc=False):
    correlation: int = -1
class Event(msgspec.Struct, gc=False):
    ph: str = ""
    cat: str | None = None
    name: str | int | None = ""
    ts: int | float | None = None
    dur: int | float | None = None
    pid: int | str | None = None
    tid: int | str | None = None
    args: Args | None = None
class Document(msgspec.Struct, gc=False):
    traceEvents: list[Event]
with igzip.open(sys.argv[1]) as file:
    msgspec.json.decode(file.read(), type=Document)
"""
HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="/")
analysis.get_temporal_breakdown(visualize=False)
analysis.get_comm_comp_overlap(visualize=False)
"""
RUNS, ONE_RUN_FROM = 3, 2_000_000
CACHED = "from cache"
TINY = Path(__file__).parents[1] / "traces" / "interleaved_cpu_2ranks"


class Spelling(NamedTuple):
    """How a tool writes the events of a file."""

    style: dict[str, Any] = {"indent": 1}  # noqa: RUF012 - never changed
    """Arguments of json.dumps."""
    by_time: bool = False
    """Whether the events of a repetition are sorted by their start."""
    metadata_first: bool = False
    """Whether the events of phase M come first, and begin with another key than the others."""


KINETO = Spelling()
SPELLINGS = {
    "Kineto's order": KINETO,
    "compact": Spelling({"separators": (",", ":")}),
    "pretty-printed": Spelling({"indent": 2}),
    "metadata first": Spelling(metadata_first=True),
    "metadata first, compact": Spelling({"separators": (",", ":")}, metadata_first=True),
    "sorted by time": Spelling(by_time=True),
    "sorted keys": Spelling({"indent": 1, "sort_keys": True}),
}
"""What scripts, json.dump, jq and HTA write."""


@dataclass
class Cost:
    """The cost of one process: CPU seconds, peak memory, wall time."""

    cpu: float
    peak_mb: float
    wall: float


def repeated(source: Path, times: int, target: Path, spelling: Spelling = KINETO) -> int:
    """Write *source* with its events repeated one after the other in time; return the number of events.

    Events are written one by one, so that a file may be larger than the memory.
    """
    with gzip.open(source, "rb") if source.suffix == ".gz" else source.open("rb") as file:
        document = json.loads(file.read())
    events = document["traceEvents"]
    starts = [event["ts"] for event in events if event.get("ph") == "X" and event.get("cat") != "Trace"]
    span = max(starts) - min(starts) + 1_000_000
    most = max(event.get("args", {}).get("correlation") or 0 for event in events)
    events = sorted(events, key=lambda event: event.get("ts") or 0) if spelling.by_time else events
    parts = [events]
    if spelling.metadata_first:
        metadata = [{"name": event["name"], **event} for event in events if event.get("ph") == "M"]
        parts = [metadata, [event for event in events if event.get("ph") != "M"]]
    head, tail = json.dumps({**document, "traceEvents": "\0"}, **spelling.style).split('"\\u0000"')
    between = ",\n  " if "indent" in spelling.style else ","
    texts = (
        text % {"ts": start + k * span, "id": number + k * most, "k": f"{k:03d}"}
        for templates in [[template(event, spelling.style) for event in part] for part in parts]
        for k in range(times)
        for text, start, number in templates
    )
    with gzip.open(target, "wb", compresslevel=1) as out:
        out.write(f"{head}[".encode())
        for batch in count():
            some = list(islice(texts, 10_000))
            if not some:
                break
            out.write(((between if batch else "") + between.join(some)).encode())
        out.write(f"]{tail}".encode())
    return len(events) * times


def template(event: dict[str, Any], style: dict[str, Any]) -> tuple[str, float, int]:
    """Return an event's text with placeholders for values that change per repetition, and their first values."""
    start, number = event.get("ts"), (event.get("args") or {}).get("correlation")
    copy = dict(event)
    if isinstance(start, int | float):
        copy["ts"] = "\0ts\0"
    if isinstance(number, int):
        copy["args"] = {**event["args"], "correlation": "\0id\0"}
    if str(event.get("name", "")).startswith("ProfilerStep#"):
        copy["name"] = f"{event['name']}\0k\0"
    # Within a list of the document, so that its lines are indented.
    text = json.dumps({"": [copy]}, **style)
    text = text[text.index("{", 1) : text.rindex("}", 0, -1) + 1].replace("%", "%%")
    for gap in ("ts", "id"):
        text = text.replace(f'"\\u0000{gap}\\u0000"', f"%({gap})s")
    text = text.replace("\\u0000k\\u0000", "%(k)s")
    return text, start if isinstance(start, int | float) else 0, number if isinstance(number, int) else 0


def measured(commands: dict[str, list[str]], runs: int, environment: dict[str, str]) -> dict[str, Cost]:
    """Run each command *runs* times, in turns, so that a busy machine affects all; return the medians.

    A command whose name begins with "from cache" runs once more before, which fills the cache.
    """
    costs: dict[str, list[Cost]] = {name: [] for name in commands}
    for name, command in commands.items():
        if name.startswith(CACHED):
            subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    for _ in range(runs):
        for name, command in commands.items():
            began = time.monotonic()
            with subprocess.Popen(
                command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            ) as process:
                assert process.stderr is not None
                stderr = process.stderr.read()
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
            if process.returncode:
                raise SystemExit(f"{name} failed: {' '.join(command)}\n{stderr.decode(errors='replace')}")
            cpu = usage.ru_utime + usage.ru_stime
            costs[name].append(Cost(cpu, usage.ru_maxrss / 1000, time.monotonic() - began))
    fields = ("cpu", "peak_mb", "wall")
    return {
        name: Cost(*(statistics.median(getattr(cost, field) for cost in some) for field in fields))
        for name, some in costs.items()
    }


def commands_for(file: Path, hta: str | None) -> dict[str, list[str]]:
    """Return the commands to run on a file, by name."""
    analyze = [sys.executable, "-m", "dptrace", "analyze", "-q", str(file)]
    commands = {
        "floor": [sys.executable, "-c", FLOOR, str(file)],
        "dptrace": [*analyze, "--no-cache", "--jobs", "1"],
        "dptrace --json": [*analyze, "--no-cache", "--jobs", "1", "--json"],
        "dptrace, all cores": [*analyze, "--no-cache"],
        CACHED: analyze,
        f"{CACHED} --json": [*analyze, "--json"],
    }
    return {**commands, "HTA": [hta, "-c", HTA, str(file.resolve())]} if hta else commands


def files(options: argparse.Namespace, folder: Path) -> Iterator[tuple[Path, int]]:
    """Create the files, or reuse earlier ones; yield each with its number of events."""
    for source, times in [(options.small, 1), *((options.large, times) for times in options.repeat)]:
        file = folder / f"{source.name.partition('.')[0]}x{times}.json.gz"
        count_file = file.with_suffix(".events")
        if not count_file.exists():
            # In another process, since the peak memory of a child starts at that of the process which forks it.
            with ProcessPoolExecutor(1) as pool:
                count_file.write_text(str(pool.submit(repeated, source, times, file).result()))
        yield file, int(count_file.read_text())


def show(events: int, costs: dict[str, Cost]) -> None:
    """Print the rows of one file."""
    floor, hta = costs.get("floor"), costs.get("HTA")
    for name, cost in costs.items():
        times = f"{cost.cpu / floor.cpu:.2f}" if floor else ""
        row = f"| {events:,} | {name} | {cost.cpu:.2f} | {times} | {cost.peak_mb:,.0f} |"
        ratios = f" {hta.cpu / cost.cpu:.0f} | {hta.peak_mb / cost.peak_mb:.1f} |" if hta and name != "HTA" else " | |"
        print(f"{row} {cost.wall:.2f} |{ratios}", flush=True)


def show_tiny(environment: dict[str, str]) -> None:
    """Print the rows of a run so small that starting takes most of the time."""
    analyze = [sys.executable, "-m", "dptrace", "analyze", "-q", str(TINY)]
    commands = {
        f"{CACHED}, tiny run": analyze,  # the first to run: it writes the bytecode
        "dptrace, tiny run": [*analyze, "--no-cache"],
        "dptrace --json, tiny run": [*analyze, "--no-cache", "--json"],
    }
    events = sum(len(json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]) for file in TINY.glob("*.json.gz"))
    show(events, measured(commands, 3 * RUNS, environment))


def show_spellings(source: Path, folder: Path, environment: dict[str, str]) -> None:
    """Print the rows of a file of about a million events, as each tool writes it; the ratio is to Kineto's order."""
    commands = {}
    for number, (name, spelling) in enumerate(SPELLINGS.items()):
        file = folder / f"spelling{number}.json.gz"
        if not file.exists():
            with ProcessPoolExecutor(1) as pool:
                pool.submit(repeated, source, 5, file, spelling).result()
        commands[name] = commands_for(file, None)["dptrace"]
        commands[f"{name}, floor"] = commands_for(file, None)["floor"]
    costs = measured(commands, RUNS, environment)
    print("\n| events written as | CPU s | × Kineto's order | × floor | peak MB |\n|---|--:|--:|--:|--:|")
    for name in SPELLINGS:
        cost, floor = costs[name], costs[f"{name}, floor"]
        ratio = cost.cpu / costs["Kineto's order"].cpu
        print(f"| {name} | {cost.cpu:.2f} | {ratio:.2f} | {cost.cpu / floor.cpu:.2f} | {cost.peak_mb:,.0f} |")


def show_growth(ours: dict[int, Cost]) -> None:
    """Print the memory per additional event, and how the time grows with the number of events."""
    print()
    for (fewer, small), (more, large) in pairwise(sorted(ours.items())):
        grown = (large.peak_mb - small.peak_mb) * 1e6 / (more - fewer)
        ten = 10 * (large.cpu / small.cpu) / (more / fewer)
        print(f"From {fewer:,} to {more:,} events: {grown:.0f} bytes of peak memory an event,", end=" ")
        print(f"and 10 × the events would take {ten:.1f} × the time.")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("small", type=Path)
    parser.add_argument("large", type=Path)
    parser.add_argument("--repeat", type=int, nargs="+", default=[1, 5, 46], help="how often to repeat LARGE's events")
    parser.add_argument("--hta", metavar="PYTHON", help="a Python that has Holistic Trace Analysis (traceinsight)")
    parser.add_argument("--hta-up-to", type=int, default=2_000_000, metavar="EVENTS", help="largest file for HTA")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="where to create the files and keep them for the next time"
    )
    parser.add_argument("--spellings", action="store_true", help="measure only the rows of other tools' spellings")
    options = parser.parse_args()
    print(
        "| events | | CPU s | × floor | peak MB | s | HTA's CPU ÷ | HTA's peak ÷ |\n|--:|---|--:|--:|--:|--:|--:|--:|"
    )
    ours = {}
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment |= {"DPTRACE_CACHE": f"{temporary}/cache", "PYTHONPYCACHEPREFIX": f"{temporary}/bytecode"}
        if options.spellings:
            show_spellings(options.large, folder, environment)
            return
        show_tiny(environment)
        for file, events in files(options, folder):
            commands = commands_for(file, options.hta if events <= options.hta_up_to else None)
            costs = measured(commands, RUNS if events < ONE_RUN_FROM else 1, environment)
            show(events, costs)
            ours[events] = costs["dptrace"]
        show_growth(ours)
        show_spellings(options.large, folder, environment)


if __name__ == "__main__":
    main()
