"""Check that two checkouts compute the same figures: run both on the same traces and compare all that they write.

    python benchmarks/same_figures.py OLD_CHECKOUT NEW_CHECKOUT [--traces DIR ...] [--work DIR]
    python benchmarks/same_figures.py --dump CHECKOUT FOLDER [--traces DIR ...]
    python benchmarks/same_figures.py --compare OLD_FOLDER NEW_FOLDER

The first form runs and compares both checkouts; the others dump each checkout once and compare the dumps as often as
needed. The runs are those in the checkout's own ``traces/`` and in each ``--traces`` folder: every folder that holds
traces, and each of several traces alone. COMMANDS lists what is run for each of them, and PAIRS which of them are
compared with each other. Only the command line of a checkout is used.

New keys and reworded prose are allowed; missing keys and changed values are not, and floats must agree to the last
digit. Where a command fails, only its exit code is compared. The exit code is 1 if a figure differs.
"""

from __future__ import annotations

import argparse
import base64
import csv
import gzip
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

RENAMED: dict[str, str] = {}
"""Keys that were renamed: the path in the old output without indices, and the new key: ``{"ranks.total": "sum"}``."""

RENAMED_TEXTS: dict[str, str] = {}
"""Texts that are data, such as names of tracks in an export, and were renamed: old to new."""

PROSE = {
    *("notes", "a.notes", "b.notes", "summary", "differs", "findings.text", "findings.advice", "alpha_beta.reason"),
    *("otherData.clocks", "otherData.notes"),
    *("scene.layout.rows.label", "scene.layout.strips.label", "scene.categories.label", "scene.categories.short"),
}
"""Paths of strings for people: how many there are is compared, not how they are worded."""

_COLOURS = {"scene.chrome", "scene.categories.color", "scene.categories.ink", "scene.categories.dark"}
_PIXELS = {"scene.layout.height", "scene.layout.blocks", "scene.layout.rows.y", "scene.layout.strips.y"}
IGNORED = {"otherData.writer", "plot", *_COLOURS, *_PIXELS}
"""Paths of what is no figure: the version of the writer, the Bokeh document around the Gantt chart, colours, places."""

COMMANDS = {
    "json": "analyze RUN --json --no-cache",
    "json raw clocks": "analyze RUN --json --no-align --no-cache",
    "json 2 jobs": "analyze RUN --json --no-cache --jobs 2",
    "csv": "analyze RUN --csv --no-cache",
    "csv collectives": "analyze RUN --csv --collectives --no-cache",
    "hta": "analyze RUN --hta-compat --json",
    "kernels": "kernels RUN --json --no-cache",
    "critical path": "critical-path RUN --json --no-cache",
    "what if": "whatif RUN --json --no-cache",
    "advise": "advise RUN --json --no-cache",
    "predict": "predict RUN --json --no-cache",
    "chrome": "export RUN -o OUT.json --no-cache",
    "gantt": "view RUN -o OUT.html --no-browser --no-cache",
}
"""What to run for every run, by the name of the output; OUT becomes the path of a file."""

COMMANDS_OF_SEVERAL = {
    "json cached": "analyze RUN --json",
    "chrome raw clocks": "export RUN -o OUT.json --no-align --no-cache",
    "pftrace": "export RUN -o OUT.pftrace --no-cache",
    "gantt rank 0": "view RUN -o OUT.html --ranks 0 --no-browser --no-cache",
    "gantt steps": "view RUN -o OUT.html --steps 5:11 --no-browser --no-cache",
}
"""What to run also for runs of several files; with the cache it runs twice, so that the second time reads the cache."""

COMMANDS_OF_PAIRS = {
    "diff": "diff RUN OTHER --json --no-cache",
    "diff every step": "diff RUN OTHER --json --include-outliers --no-cache",
    "gantt": "view RUN --against OTHER -o OUT.html --no-browser --no-cache",
}

PAIRS = (
    ("*/naive_cpu_2ranks", "*/interleaved_cpu_2ranks"),
    ("*/ddp_cpu_2ranks", "*/ddp_4mb_cpu_2ranks"),
    ("*/ddp_cpu_2ranks", "*/ddp_cpu_2ranks"),
    ("*/straggler_v100_4ranks", "*/dlrm_v100_4ranks"),
    ("*/sharded_h100_8ranks/*-rank0-*", "*/sharded_h100_8ranks/*-rank1-*"),
    ("*/sharded_h100_8ranks", "*/sharded_h100_8ranks"),
)
"""Runs to compare with each other; pairs that are not among the runs are left out."""

TRACES = (".json", ".json.gz", ".pftrace", ".zip")
INDEX = "index.json"
_ISLAND = re.compile(r'<script type="application/json" id="(\w+)">(.*?)</script>', re.DOTALL)
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


def runs_in(folder: Path, shown: str) -> Iterator[tuple[str, bool]]:
    """List the runs in a folder, whose path is *shown* on the command line, and whether each has several files."""
    for inner in sorted(path for path in folder.iterdir() if path.is_dir()):
        files = sorted(path.name for path in inner.iterdir() if path.name.endswith(TRACES) and path.name != "run.json")
        if files:
            yield f"{shown}/{inner.name}", len(files) > 1
        if len(files) > 1:
            yield from ((f"{shown}/{inner.name}/{name}", False) for name in files)
        yield from runs_in(inner, f"{shown}/{inner.name}")


def jobs(checkout: Path, folders: list[Path]) -> Iterator[tuple[str, str, list[str]]]:
    """List what to run: the name of the run, the name of the output, and the arguments."""
    roots = [(checkout / "traces", "traces"), *((folder, str(folder.resolve())) for folder in folders)]
    runs = [run for root in roots for run in runs_in(*root)]
    for run, several in runs:
        for output, command in (COMMANDS | COMMANDS_OF_SEVERAL if several else COMMANDS).items():
            yield run, output, [run if word == "RUN" else word for word in command.split()]
    for patterns in PAIRS:
        pair = [run for pattern in patterns for run in [one for one, _ in runs if fnmatch(one, pattern)][:1]]
        if len(pair) == 2:
            for output, command in COMMANDS_OF_PAIRS.items():
                places = {"RUN": pair[0], "OTHER": pair[1]}
                yield " → ".join(pair), output, [places.get(word, word) for word in command.split()]


def dump(checkout: Path, target: Path, folders: list[Path], only: str) -> None:
    """Run every command of a checkout on the runs that match *only*, and keep what they write in *target*."""
    checkout, target = checkout.resolve(), target.resolve()
    if not (checkout / "dptrace" / "__main__.py").is_file():
        raise SystemExit(f"{checkout} is not a checkout of dptrace.")
    target.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | dict.fromkeys(("DPTRACE_CACHE", "XDG_CACHE_HOME"), cache)
        # Worker processes must find the checkout too, not an installed dptrace.
        environment["PYTHONPATH"] = str(checkout)
        index: dict[str, dict[str, dict[str, str]]] = {}
        for number, (run, output, arguments) in enumerate(jobs(checkout, folders)):
            if fnmatch(run, only):
                print(f"{checkout.name}: {run}: {output}", file=sys.stderr, flush=True)
                index.setdefault(run, {})[output] = execute(arguments, target / f"{number:04}", checkout, environment)
    (target / INDEX).write_text(json.dumps(index, indent=1), encoding="utf-8")


def execute(arguments: list[str], path: Path, checkout: Path, environment: dict[str, str]) -> dict[str, str]:
    """Run one command; return how it ended, and the name of the packed file with its output: *path* and a suffix."""
    suffix = next((word[3:] for word in arguments if word.startswith("OUT.")), "")
    written = path.with_suffix(suffix or (".csv" if "--csv" in arguments else ".json"))
    command = [sys.executable, "-m", "dptrace", *arguments, "--quiet"]
    command = [str(written) if word.startswith("OUT.") else word for word in command]
    for _ in range(1 if "--no-cache" in arguments else 2):
        done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, check=False)
    if done.returncode:
        return {"end": f"exit {done.returncode}{' (traceback)' * (b'Traceback (most recent' in done.stderr)}"}
    packed = written.with_name(written.name + ".gz")
    packed.write_bytes(gzip.compress(written.read_bytes() if suffix else done.stdout, 1, mtime=0))
    written.unlink(missing_ok=True)
    return {"end": "exit 0", "file": packed.name}


@dataclass
class Found:
    """What two outputs differ by."""

    figures: list[str] = field(default_factory=list)
    reworded: int = 0
    numbers: list[str] = field(default_factory=list)
    """Prose with other numbers than before."""
    new_keys: set[str] = field(default_factory=set)

    def compare(self, old: Any, new: Any, place: str = "", path: str = "") -> None:
        """Compare two documents, or what stands in them at *place*, which is *path* without the indices."""
        if type(old) is not type(new):
            self.figures.append(change(place, old, new))
        elif isinstance(old, dict):
            self._compare_keys(old, new, place, path)
        elif isinstance(old, list):
            if len(old) != len(new):
                self.figures.append(f"{place}: {len(old)} → {len(new)} entries")
            for number, (one, other) in enumerate(zip(old, new, strict=False)):
                self.compare(one, other, f"{place}[{number}]", path)
        elif path in PROSE:
            self.reworded += old != new
            if Counter(_NUMBER.findall(str(old))) != Counter(_NUMBER.findall(str(new))):
                self.numbers.append(change(place, old, new))
        elif repr(old) != repr(new) and (not isinstance(old, str) or RENAMED_TEXTS.get(old) != new):
            self.figures.append(change(place, old, new))

    def _compare_keys(self, old: dict[str, Any], new: dict[str, Any], place: str, path: str) -> None:
        if old.keys() == new.keys() == {"type", "data", "escapes"}:
            self.compare(unpack(old), unpack(new), place, path)
            return
        dot = "." if path else ""
        paths = {key: f"{path}{dot}{key}" for key in old}
        names = {key: RENAMED.get(paths[key], key) for key in old if paths[key] not in IGNORED}
        for key, name in names.items():
            if name in new:
                self.compare(old[key], new[name], f"{place}{dot}{key}", paths[key])
            else:
                self.figures.append(f"{place}{dot}{key}: missing")
        self.new_keys |= {f"{path}{dot}{key}" for key in new.keys() - names.values()} - IGNORED


def unpack(column: dict[str, Any]) -> list[int]:
    """Return the integers of a column of a page, which holds them as base64 of gzipped byte planes."""
    planes = gzip.decompress(base64.b64decode(column["data"]))
    size = {"Uint8": 1, "Uint16": 2, "Uint32": 4}[column["type"]]
    count = len(planes) // size
    lowest_first = [planes[plane * count : (plane + 1) * count] for plane in range(size)]
    values = [int.from_bytes(digits, "little") for digits in zip(*lowest_first, strict=True)]
    for place, value in column["escapes"]:
        values[place] = value
    return values


def change(place: str, old: Any, new: Any) -> str:
    """Describe a change, with long values cut off."""
    return f"{place}: {old!r:.200} → {new!r:.200}"


def document(data: bytes, suffix: str) -> Any:
    """Return an output as plain data."""
    if suffix == ".json":
        return json.loads(data)
    if suffix == ".csv":
        reader = csv.DictReader(io.StringIO(data.decode()))
        return {"columns": dict.fromkeys(reader.fieldnames or ()), "rows": list(reader)}
    if suffix == ".html":
        return {name: json.loads(text) for name, text in _ISLAND.findall(data.decode())}
    if suffix == ".pftrace":
        from google.protobuf.json_format import MessageToDict
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2

        return MessageToDict(perfetto_trace_pb2.Trace.FromString(data))
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    readable = {name: json.loads(text) for name, text in members.items() if name == "perfetto_manifest.json"}
    return {name: hashlib.sha256(text).hexdigest() for name, text in members.items()} | readable


def judge(folders: list[Path], old: dict[str, Any], new: dict[str, Any]) -> tuple[str, Found]:
    """Compare one output of both checkouts; return a word for the table, and the differences."""
    found = Found()
    ends = [one["end"] for one in (old, new)]
    if ends[0] != ends[1]:
        found.figures.append(" → ".join(ends))
    elif "file" not in old:
        return ends[0], found
    else:
        files = folders[0] / old["file"], folders[1] / new["file"]
        data = [gzip.decompress(file.read_bytes()) for file in files]
        if data[0] != data[1]:
            found.compare(*(document(one, files[0].suffixes[0]) for one in data))
    return "**differs**" if found.figures else "prose only" if found.reworded else "equal", found


def compare(folders: list[Path], only: str) -> bool:
    """Compare two dumps, the old one first, and print the table; return whether all figures are equal."""
    old, new = (json.loads((folder / INDEX).read_text(encoding="utf-8")) for folder in folders)
    old = {run: entries for run, entries in old.items() if fnmatch(run, only)}
    outputs = list(COMMANDS | COMMANDS_OF_SEVERAL | COMMANDS_OF_PAIRS)
    print(f"| run | {' | '.join(outputs)} |\n|---|{'---|' * len(outputs)}")
    details, words = [], Counter[str]()
    for run, entries in old.items():
        cells = dict.fromkeys(outputs, "")
        for output, entry in entries.items():
            word, found = judge(folders, entry, new.get(run, {}).get(output, {"end": "not dumped"}))
            cells[output] = word
            words[word] += 1
            listed = {"new keys": sorted(found.new_keys), "prose with other numbers": found.numbers}
            for what, places in {"differences": found.figures, **listed}.items():
                if places:
                    details.append(f"- {run}, {output}: {len(places)} {what}: {'; '.join(places[:5])}")
        print(f"| {run} | {' | '.join(cells.values())} |")
    print("", *details, "", ", ".join(f"{count} {word}" for word, count in words.most_common()), sep="\n")
    return not words["**differs**"]


def main() -> int:
    """Do what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs="*", type=Path, metavar="CHECKOUT", help="the old one, then the new one")
    parser.add_argument("--dump", nargs=2, type=Path, metavar=("CHECKOUT", "FOLDER"), help="dump one checkout")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("OLD", "NEW"), help="compare two dumps")
    parser.add_argument("--traces", nargs="+", type=Path, default=[], metavar="DIR", help="more folders of runs")
    parser.add_argument("--only", default="*", metavar="GLOB", help="leave out runs whose path does not match")
    parser.add_argument("--work", type=Path, metavar="DIR", help="keep the dumps here, as DIR/old and DIR/new")
    asked = parser.parse_args()
    if (len(asked.checkouts) == 2) + bool(asked.dump) + bool(asked.compare) != 1:
        parser.error("name two checkouts, or use one of --dump and --compare")
    if asked.compare:
        return 0 if compare(asked.compare, asked.only) else 1
    with tempfile.TemporaryDirectory() as scratch:
        both = [(asked.work or Path(scratch)) / name for name in ("old", "new")]
        for checkout, folder in [asked.dump] if asked.dump else zip(asked.checkouts, both, strict=True):
            dump(checkout, folder, asked.traces, asked.only)
        return 0 if asked.dump or compare(both, asked.only) else 1


if __name__ == "__main__":
    sys.exit(main())
