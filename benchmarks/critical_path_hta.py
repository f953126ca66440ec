"""Compare dptrace's critical path of a step with that of Holistic Trace Analysis (HTA), on the trace of one rank.

    python -m benchmarks.critical_path_hta [TRACE ...]

TRACE is the file of one rank; by default, those of the recordings in ../shared/traces that HTA can read. HTA's frames
are those of `dptrace hta`, with fractions of µs. Both tools see this one file; its collectives wait for ranks that are
not in it. For each step: the length of both paths, their time by kind, and how much of the time of the kernels,
collectives and copies on one path is of such as are on the other, too.

length    dptrace's is the step's, from the end of the step before to its own; HTA's is the sum of the weights of its
          edges, beside the time from its first node to its last
host      calls, operators and pauses between them
kernels   compute, copies and sets
comm      collectives; in dptrace also the arrival of ranks that are not in the file
launch    latency of launches, and gaps between kernels of a stream; in dptrace also returns of waits
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

# HTA looks at it when it parses; whole µs would give short kernels a length of 0 or below.
os.environ.setdefault("HTA_DISABLE_NS_ROUNDING", "1")

import dptrace
from dptrace.hta.trace_analysis import silence_hta
from dptrace.replay.critical_path import CriticalPath
from dptrace.run.kernels import operator_calls_of

SHARED = Path(__file__).resolve().parents[2] / "shared" / "traces"
RECORDINGS = (
    *("ns_v100_1gpu", "ddp_a100_rank0of2", "perparam_v100_rank1of2", "dlrm_v100_4ranks", "straggler_v100_4ranks"),
    *("sharded_h100_8ranks", "ddp_mi300_rank0of8"),
)
OURS = {
    "host": ("host",),
    "kernels": ("compute", "memory"),
    "comm": ("transfer", "absent_ranks"),
    "launch": ("launch", "stream", "wait"),
}
HTAS = {
    "host": ("cpu_bound", "data_loading"),
    "kernels": ("gpu_compute_bound",),
    "comm": ("gpu_communication_bound",),
    "launch": ("gpu_kernel_launch_overhead", "gpu_kernel_kernel_overhead"),
}
Kernels = dict[int, float]
"""Time in ms of device intervals by their correlation id."""


def default_traces() -> Iterator[Path]:
    """Yield a rank of each recording: the last to arrive at its collectives where they are all here, else the first."""
    ranks = {"dlrm_v100_4ranks": 2, "straggler_v100_4ranks": 2, "sharded_h100_8ranks": 1}
    for name in RECORDINGS:
        if not (SHARED / name).exists():
            continue
        timelines = dptrace.open(SHARED / name).timelines
        yield Path(next(one.path for one in timelines if one.rank == ranks.get(name, timelines[0].rank)))


def our_kernels(path: CriticalPath) -> Kernels:
    """Return the device intervals on a path, with their time on it."""
    found: Kernels = {}
    timeline = path.timelines[0]
    calls = operator_calls_of(path._model.run, timeline).calls
    correlation = calls.device_correlation[calls.device_index(timeline)]
    length = (path.links.end_ns - path.links.start_ns) / 1e6
    places = path.recorded
    for i in np.flatnonzero(places.interval >= 0).tolist():
        key = int(correlation[places.interval[i]])
        found[key] = found.get(key, 0.0) + float(length[i])
    return found


def htas(analysis: Any, rank: int, step: str) -> tuple[float, float, dict[str, float], Kernels] | str:
    """Return length, span, time by kind and kernels of HTA's path of a step, or why it has none; times in ms."""
    try:
        with silence_hta(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = analysis.critical_path_analysis(rank, step, 0)
            if result is None or not result[1]:
                return "no valid graph"
            graph = result[0]
            table = graph.get_critical_path_breakdown()
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:80]}"
    times = [graph.node_list[node].ts for node in graph.critical_path_nodes]
    kinds = {
        kind: float(table.loc[table["bound_by"].isin(names), "duration"].sum()) / 1e3 for kind, names in HTAS.items()
    }
    kernels: Kernels = {}
    on_device = table[(table["type"] == "critical_path_operator") & (table["stream"] >= 0)]
    for event, duration in zip(on_device["event_idx"], on_device["duration"], strict=True):
        kernels[int(graph.full_trace_df.loc[int(event), "correlation"])] = float(duration) / 1e3
    return float(table["duration"].sum()) / 1e3, (times[-1] - times[0]) / 1e3, kinds, kernels


def shared(one: Kernels, other: Kernels) -> str:
    """Say how many of the kernels of one path are on the other, and how much of their time."""
    both, total = set(one) & set(other), sum(one.values())
    ms = sum(one[key] for key in both)
    return f"{len(both):,} of {len(one):,} ({100 * ms / total:.0f} % of {total:.1f} ms)" if one else "none on it"


def compare(trace: Path) -> Iterator[str]:
    """Yield the rows of a trace: two for each step."""
    run = dptrace.open(trace)
    rank = run.timelines[0].rank
    analysis = dptrace.hta_analysis(run, include_last_profiler_step=True)
    for step in run.timelines[0].windows.names:
        path = run.critical_path(step)
        ours = our_kernels(path)
        kinds = {kind: sum(path.by_kind[name] for name in names) / 1e6 for kind, names in OURS.items()}
        found = htas(analysis, rank, step)
        name = f"{trace.parent.name}, rank {rank}, {step}"
        other = "" if isinstance(found, str) else shared(ours, found[3])
        yield row(f"{name} | dptrace | {path.length_ns / 1e6:.2f}", kinds, other)
        if isinstance(found, str):
            yield f"| | HTA | {found} | | | | | |"
            continue
        length, span, theirs, kernels = found
        yield row(f"| HTA | {length:.2f} of {span:.2f}", theirs, shared(kernels, ours))


def row(head: str, kinds: dict[str, float], other: str) -> str:
    figures = " | ".join(f"{kinds[kind]:.2f}" for kind in OURS)
    return f"| {head} | {figures} | {other} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path, metavar="TRACE")
    options = parser.parse_args()
    print("| Step | Tool | Length, ms | Host | Kernels | Comm | Launch | Of its kernels, on the other path |")
    print("| --- | --- | --: | --: | --: | --: | --: | --- |")
    for trace in options.traces or default_traces():
        for line in compare(trace):
            print(line, flush=True)


if __name__ == "__main__":
    main()
