"""Measure what findings cost ``dptrace analyze``: CPU seconds with them, and as a multiple of those without.

    python benchmarks/findings_cost.py RUN ... [--pairs 5] [--ranks 5-60] [--steps 12:13]

Pairs of commands run in turns, since seconds differ from one minute to the next on a machine that others use: the
median of the ratios within pairs counts. Files are not read before, then read again; then, with --ranks or --steps,
that part of the run is asked for, as a multiple of the whole run, read again, without findings. Prints a row of a
table, and the peak memory of the largest process.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median

WITH = ("-m", "dptrace")
WITHOUT = ("-c", "import sys; from benchmarks.findings_cost import without_findings; sys.exit(without_findings())")
"""The same command, but that it looks for no findings, nor reads what they need."""
ROOT = Path(__file__).resolve().parents[1]
TINY = ROOT / "traces" / "interleaved_cpu_2ranks"
"""The first to run: it writes the bytecode, from which an installed dptrace runs, too."""


def without_findings() -> int | None:
    """Run the command line with no findings."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from dptrace.commands import analyze
    from dptrace.commands.shared.main import main
    from dptrace.replay import findings

    opened = analyze.open_to_find
    analyze.open_to_find = lambda paths, options, verbosity, selection, *_, **__: opened(  # type: ignore[assignment]
        paths, options, verbosity, selection
    )
    analyze.with_findings = lambda run, *_: run  # type: ignore[assignment]
    findings.findings_of = lambda run, *_: ()  # type: ignore[assignment]
    return main()


def cpu_s(code: Sequence[str], cache: Path, arguments: Sequence[str]) -> float:
    """Run ``dptrace analyze``, and return the CPU seconds of all its processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    environment |= {"DPTRACE_CACHE": str(cache), "PYTHONPATH": path}
    command = [sys.executable, *code, "analyze", "-q", *arguments]
    subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def shown(pairs: Sequence[tuple[float, float]]) -> str:
    """Return the seconds with findings, and the ratio of each pair's second to its first, both medians."""
    return f"{median(own for _, own in pairs):.2f} s, {median(own / base for base, own in pairs):.2f} ×"


def measure(run: str, pairs: int, parts: Sequence[Sequence[str]]) -> str:
    """Return a row of the table."""
    cold, again, of_parts = list[tuple[float, float]](), list[tuple[float, float]](), list[str]()
    for number in range(pairs):
        with tempfile.TemporaryDirectory(prefix="dptrace-cost.") as folder:
            caches = Path(folder, "without"), Path(folder, "with")
            cold.append((cpu_s(WITHOUT, caches[0], [run]), cpu_s(WITH, caches[1], [run])))
            again.append((cpu_s(WITHOUT, caches[1], [run]), cpu_s(WITH, caches[1], [run])))
            if number == pairs - 1:
                of_parts = [shown([(again[-1][0], cpu_s(WITH, caches[1], [*part, run]))]) for part in parts]
    return " | ".join([Path(run).name, shown(cold), shown(again), *of_parts])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--ranks")
    parser.add_argument("--steps")
    given = parser.parse_args()
    parts = {"--ranks": given.ranks, "--steps": given.steps}
    chosen = [(name, value) for name, value in parts.items() if value]
    heads = ["run", "files not read before", "again", *(" ".join(part) for part in chosen)]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    measure(str(TINY), 1, [])
    for run in given.runs:
        print(f"| {measure(run, given.pairs, chosen)} |", flush=True)
    print(f"Peak memory of the largest process: {resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10:,} MB")


if __name__ == "__main__":
    main()
