"""How close `dptrace analyze` comes to the speed at which a trace's bytes can be decoded at all.

    python benchmarks/read.py TRACE [--repeat 5]

TRACE's steps are repeated with shifted times and correlation ids, to about a million events for
`perparam_v100_rank1of2`. Printed are CPU seconds and peak memory of whole processes, the median of three, and their
ratio to the floor: gunzip with isal and one typed decode with msgspec, one thread.
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
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

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


def repeated(source: Path, times: int, target: Path) -> int:
    """Write *source* with its events *times* over, one after the other in time; give the number of events."""
    document = json.loads((gzip.open if source.suffix == ".gz" else open)(source, "rb").read())
    events = document["traceEvents"]
    starts = [event["ts"] for event in events if event.get("ph") == "X" and event.get("cat") != "Trace"]
    span = max(starts) - min(starts) + 1_000_000
    most = max(event.get("args", {}).get("correlation") or 0 for event in events)
    document["traceEvents"] = [moved(event, k, span, most) for k in range(times) for event in events]
    with gzip.open(target, "wb", compresslevel=1) as file:
        file.write(json.dumps(document, indent=1).encode())
    return len(document["traceEvents"])


def moved(event: dict[str, object], k: int, span: float, most: int) -> dict[str, object]:
    """Copy an event into the k-th repetition."""
    copy = dict(event)
    if isinstance(start := event.get("ts"), int | float):
        copy["ts"] = start + k * span
    if isinstance(args := event.get("args"), dict) and isinstance(args.get("correlation"), int):
        copy["args"] = {**args, "correlation": args["correlation"] + k * most}
    if str(event.get("name", "")).startswith("ProfilerStep#"):
        copy["name"] = f"{event['name']}{k:03d}"
    return copy


def measured(command: list[str]) -> tuple[float, float]:
    """Run a process three times; give the median of its CPU seconds and of its peak memory in MB."""
    runs = []
    for _ in range(3):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, command
        runs.append((usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1000))
    return statistics.median(cpu for cpu, _ in runs), statistics.median(peak for _, peak in runs)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "rank0.json.gz")
        # In a process of its own: a child's peak memory counts from that of the process which forks it.
        with ProcessPoolExecutor(1) as maker:
            events = maker.submit(repeated, options.trace, options.repeat, file).result()
        floor, floor_peak = measured([sys.executable, "-c", FLOOR, str(file)])
        ours, peak = measured([sys.executable, "-m", "dptrace", "analyze", "-q", str(file)])
    print(f"{events:,} events           CPU s   × floor   peak MB")
    print(f"floor                  {floor:9.2f}      1.00 {floor_peak:9.0f}")
    print(f"dptrace analyze        {ours:9.2f} {ours / floor:9.2f} {peak:9.0f}")


if __name__ == "__main__":
    main()
