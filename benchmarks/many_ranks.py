"""Make a run of many ranks from the eight real ones of a recording, on nodes whose clocks differ; measure verbs on it.

    python benchmarks/many_ranks.py sharded_h100_8ranks FOLDER --ranks 512
    python benchmarks/many_ranks.py sharded_h100_8ranks FOLDER --measure VERB ...
    PYTHONPATH=. python benchmarks/many_ranks.py mesh FOLDER --prices 64 256 512 2048

Each node of eight repeats the recording, on a clock of its own that is up to 5 ms off. Only the node in the middle has
the recording's slow rank; in the others, a quick rank takes its place. So there is one rank that all others wait for.

With --measure, verbs run on a FOLDER that was made before, each with an empty cache and again. Prints CPU seconds, the
peak memory of the largest process, and wall time.

With --prices, it simulates meshes of so many ranks, one of them slow, below FOLDER, measures all verbs on each, and
prints a table: what each costs, and by how much the CPU time of a rank grows from the smallest mesh to the largest.
"""

from __future__ import annotations

import argparse
import gzip
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

NODE = 8
"""Ranks of a node, and of the recording."""
SLOW, QUICK = 1, 2
"""The recording's rank that the others wait for, and the one that stands in for it on the other nodes."""
MAX_OFFSET_NS = 5_000_000
_LISTED = 30
"""Ranks of a group that torch writes into a trace; of a larger group it leaves out those before the last."""

VERBS = {
    "analyze": "analyze -q",
    "json": "analyze -q --json",
    "served": "view -q --serve --no-browser",
    "view": "view -q -o page.html --force",
    "report": "report -q -o report.html --force",
    "diff": "diff -q {folder}",
    "whatif": "whatif -q --no-straggler",
    "path": "critical-path -q",
    "advise": "advise -q",
    "kernels": "kernels -q",
}
_STEPS, _TP = 4, 8
"""Of a simulated mesh."""


def main() -> None:
    """Write the traces, or measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recording", help="folder with traces of eight ranks, whose names hold the rank; or: mesh")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=512, help="a multiple of eight [512]")
    parser.add_argument("--measure", nargs="+", choices=VERBS, default=[], metavar="VERB", help=", ".join(VERBS))
    parser.add_argument("--cache", type=Path, help="read the files into this cache, and measure only what reads it")
    parser.add_argument("--prices", nargs="+", type=int, default=[], metavar="RANKS", help="print a table of meshes")
    given = parser.parse_args()
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a job in the background ignores it, and so would a server
    if given.prices:
        print_prices(given.folder.resolve(), given.prices)
    elif given.measure:
        measure(given.folder.resolve(), given.measure, given.cache and given.cache.resolve())
    else:
        write_run(given)


def write_run(given: argparse.Namespace) -> None:
    """Write all traces."""
    given.folder.mkdir(parents=True, exist_ok=True)
    files = {int(re.findall(r"rank(\d+)", path.name)[0]): path for path in Path(given.recording).glob("*.json.gz")}
    traces = {rank: in_group(gzip.decompress(path.read_bytes()), given.ranks) for rank, path in files.items()}
    for node in range(given.ranks // NODE):
        write_node(given.folder, node, traces, slow=node == given.ranks // NODE // 2)


def in_group(trace: bytes, ranks: int) -> bytes:
    """Return a trace as of a group of *ranks*."""
    everyone = ", ".join(map(str, range(ranks)))
    listed = everyone if ranks <= _LISTED else f"{', '.join(map(str, range(_LISTED - 1)))}, ..., {ranks - 1}"
    for old, new in (
        (rb'"Group size": \d+', f'"Group size": {ranks}'),
        (rb'"Process Group Ranks": "[^"]*"', f'"Process Group Ranks": "[{listed}]"'),
        (rb'"world_size": \d+', f'"world_size": {ranks}'),
        (rb'"pg_size": \d+, "ranks": \[[^\]]*\]', f'"pg_size": {ranks}, "ranks": [{everyone}]'),
    ):
        trace = re.sub(old, new.encode(), trace)
    return trace


def write_node(folder: Path, node: int, traces: Mapping[int, bytes], slow: bool) -> None:
    """Write the traces of one node, named as torch's tensorboard_trace_handler does."""
    offset = random.Random(node).randint(-MAX_OFFSET_NS, MAX_OFFSET_NS) if node else 0
    for place in range(NODE):
        rank, source = NODE * node + place, place if slow or place != SLOW else QUICK
        trace = re.sub(rb'("[Rr]ank": )\d+', rb"\g<1>%d" % rank, traces[source])
        base = re.search(rb'"baseTimeNanoseconds": (\d+)', trace)
        assert base is not None
        moved = b'"host_name": "node-%03d", "baseTimeNanoseconds": %d' % (node, int(base[1]) + offset)
        trace = trace[: base.start()] + moved + trace[base.end() :]
        name = f"node-{node:03d}_{1000 + place}.rank{rank}.pt.trace.json.gz"
        (folder / name).write_bytes(gzip.compress(trace, 1, mtime=0))


def print_prices(folder: Path, sizes: Sequence[int]) -> None:
    """Print a table in Markdown of what all verbs cost on simulated meshes of these sizes, fresh and from the cache."""
    from tests.support.mesh import Mesh

    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for ranks in sizes:
        run = folder / f"mesh{ranks}"
        if not run.exists():
            Mesh(tp=_TP, dp=ranks // _TP, node=NODE, steps=_STEPS, slow={5: 1.35}).write(run)
        for verb, state, cpu, peak in measured(run, list(VERBS), None):
            found.setdefault((verb, state), []).append((cpu, peak))
    print(f"| | {' | '.join(f'{ranks:,} ranks' for ranks in sizes)} | CPU of a rank |")
    print("|---" * (len(sizes) + 2) + "|")
    for (verb, state), costs in found.items():
        growth = costs[-1][0] / costs[0][0] * sizes[0] / sizes[-1]
        cells = [f"{cpu:.1f} s, {peak:,.0f} MB" for cpu, peak in costs]
        print(f"| `{VERBS[verb].split(' {')[0]}`, {state} | {' | '.join(cells)} | × {growth:.2f} |")


def measure(folder: Path, verbs: list[str], cache: Path | None) -> None:
    """Print what each verb costs, fresh and from the cache; from a *cache* that is there, only that."""
    for _ in measured(folder, verbs, cache):
        pass


def measured(folder: Path, verbs: list[str], cache: Path | None) -> Iterator[tuple[str, str, float, float]]:
    """Yield and print each verb's name, the state of the cache, CPU seconds and peak memory in MB."""
    print(f"{folder.name:8} {'cache':6}{'CPU s':>8}{'peak MB':>9}{'wall s':>8}")
    with tempfile.TemporaryDirectory(prefix="dptrace-ranks.") as out:
        if cache is not None:
            _run("view", folder, out, cache)
        for verb in verbs:
            shutil.rmtree(f"{out}/cache", ignore_errors=True)
            for state in ("fresh", "cached") if cache is None else ("cached",):
                started, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
                status, peak_kb = _run(verb, folder, out, cache or Path(out, "cache"))
                wall = time.monotonic() - started
                after = resource.getrusage(resource.RUSAGE_CHILDREN)
                cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
                failed = f"  exit status {status}" if status else ""
                print(f"{verb:8} {state:6}{cpu:8.1f}{peak_kb / 1024:9.0f}{wall:8.1f}{failed}", flush=True)
                yield verb, state, cpu, peak_kb / 1024


def _run(verb: str, folder: Path, out: str, cache: Path) -> tuple[int, int]:
    """Run a verb in the folder *out*; return its exit status and the peak memory of its largest process in KiB."""
    command = [sys.executable, "-m", "dptrace", *VERBS[verb].format(folder=folder).split(), str(folder)]
    # From bytecode, as an installed dptrace runs.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"DPTRACE_CACHE": str(cache), "PYTHONPYCACHEPREFIX": f"{out}/bytecode"}
    with (
        open(f"{out}/{verb}.output", "wb") as output,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE if verb == "served" else output,
            stderr=output,
            env=environment,
            cwd=out,
        ) as process,
    ):
        if process.stdout is not None:  # a server: until its page has arrived
            with urllib.request.urlopen(process.stdout.readline().decode().strip()) as page:
                page.read()
            process.send_signal(signal.SIGINT)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage.ru_maxrss


if __name__ == "__main__":
    main()
