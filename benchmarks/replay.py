"""Replay recordings as they were, and measure what each kind of dependency is worth to the answers of what-ifs.

    python -m benchmarks.replay [RUN ...] [--ablate] [--large FILE --times N]

RUN is what `dptrace whatif` opens; by default, the runs in traces/ and, where they are, the recordings of others in
../shared/traces.

error     replayed / measured - 1 of the median step, on the rank where it is largest, without the waits that only times
          suggest (strict) and with them
worst     the largest error of a single step, with them
inferred  waiting in a step that only times explain, on the worst device
host      share of the critical path that hosts take: near 100 %, a replay adds up recorded pauses and proves little
--ablate  what a what-if gains in ms a step, with all dependencies and without one kind of them
--large   CPU seconds and peak memory of graph and replay, of FILE with its steps N times over
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import dptrace
from benchmarks.read import repeated
from dptrace.core.intervals import median
from dptrace.replay.graph.build import Model
from dptrace.replay.graph.model import EdgeKind
from dptrace.replay.graph.schedule import Schedule
from dptrace.replay.paths import path_of_run
from dptrace.replay.simulation import WALL, Outcome, StepSelection, outcome, simulated_figures
from dptrace.replay.transforms.change import Bandwidth, Change, Compute, NoHostDelay
from dptrace.replay.transforms.stragglers import NoStraggler
from dptrace.replay.whatif import Replay, inferred_ns

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared" / "traces"
OTHERS = (
    *("straggler_v100_4ranks", "dlrm_v100_4ranks", "sharded_h100_8ranks", "ddp_a100_rank0of2"),
    *("perparam_v100_rank1of2", "ddp_mi300_rank0of8", "ns_v100_1gpu"),
)
WHAT: dict[str, tuple[Change, ...]] = {
    "straggler_v100_4ranks": (NoStraggler(),),
    "dlrm_v100_4ranks": (Bandwidth(2), Compute(2)),
    "ddp_mi300_rank0of8": (Bandwidth(2),),
    "perparam_v100_rank1of2": (NoHostDelay(),),
    "naive_cpu_2ranks": (Bandwidth(2), Compute(2)),
}
"""The changes whose answers are tested on a recording."""
WITHOUT = {
    "all": (),
    "−produce": (EdgeKind.PRODUCE,),
    "−join": (EdgeKind.JOIN,),
    "−host waits": (EdgeKind.SYNCHRONIZE, EdgeKind.HIDDEN, EdgeKind.QUEUE),
    "−threads": (EdgeKind.THREAD,),
    "−rendezvous": (EdgeKind.RENDEZVOUS,),
    "−all between streams": (EdgeKind.PRODUCE, EdgeKind.JOIN, EdgeKind.TIMED, EdgeKind.BUSY),
}


def default_runs() -> Iterator[Path]:
    """Yield the runs in the repository, and the recordings of others that are here."""
    yield from sorted(path for path in (ROOT / "traces").iterdir() if path.is_dir())
    yield from (SHARED / name for name in OTHERS if (SHARED / name).exists())


def errors(replay: Replay, result: Outcome) -> tuple[float, float]:
    """Return the error of the median step on the worst rank, and of the worst step, as shares."""
    measured, replayed = (table[:, :, WALL] for table in (replay.measured, simulated_figures(result, replay.chosen)))
    steps = median(replayed, axis=1) / median(measured, axis=1) - 1
    return float(steps[np.abs(steps).argmax()]), float(np.abs(replayed / measured - 1).max())


def show_errors(name: str, replay: Replay) -> None:
    strict, full = errors(replay, replay.strict), errors(replay, replay.base)
    inferred = inferred_ns(replay.model) / len(replay.chosen.steps) / 1e6
    kinds = path_of_run(replay.model, replay.base.times).by_kind()
    host = kinds["host"] / max(1, sum(kinds.values()))
    print(
        f"| {name} | {100 * strict[0]:+.2f} % | {100 * full[0]:+.2f} % | {100 * full[1]:.2f} % | {inferred:.2f} | "
        f"{100 * host:.0f} % |",
        flush=True,
    )


def gain_ms(model: Model, change: Change, chosen: StepSelection) -> float:
    """Return how much earlier the run ends, in ms a step."""
    before, after = outcome(model, chosen), outcome(change.apply(model), chosen)
    return float((before.ended_ns - after.ended_ns).mean() / len(chosen.steps) / 1e6)


def show_ablations(name: str, replay: Replay) -> None:
    edge = replay.model.graph.edge
    for change in WHAT.get(name, ()):
        gains = []
        for kinds in WITHOUT.values():
            model = replay.model.with_edges(edge.take(~edge.of(*kinds))) if kinds else replay.model
            gains.append(f"{gain_ms(model, change, replay.chosen):.1f}")
        print(f"| {name}: {change.describe()} | {' | '.join(gains)} |", flush=True)


def show_cost(file: Path, times: int) -> None:
    """Measure graph and replay of a large file: CPU seconds beyond reading it, and the process's peak memory."""
    with tempfile.TemporaryDirectory() as folder:
        events = repeated(file, times, path := Path(folder, "large.json.gz"))
        run = dptrace.open(path, cache=False)
        started = time.process_time()
        replay = Replay(run)
        built = time.process_time()
        schedule = Schedule(replay.model.graph)
        schedule.run()
        ran = time.process_time()
        replay.whatif((Compute(2),))
        done = time.process_time()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    tasks, edges = len(replay.model.graph), len(replay.model.graph.edge)
    print(
        f"{events:,} events, {tasks:,} tasks, {edges:,} edges: second reading and graph {built - started:.2f} s, replay"
    )
    print(f"{ran - built:.2f} s, the first what-if with its baseline {done - ran:.2f} s of CPU; peak {peak:,.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN")
    parser.add_argument("--ablate", action="store_true")
    parser.add_argument("--large", type=Path, metavar="FILE")
    parser.add_argument("--times", type=int, default=5)
    options = parser.parse_args()
    if options.large:
        show_cost(options.large, options.times)
        return
    heads = list(WITHOUT) if options.ablate else ["strict", "error", "worst step", "inferred, ms", "host"]
    print("| | " + " | ".join(heads) + " |\n| --- |" + " --: |" * len(heads))
    for path in options.runs or default_runs():
        replay = Replay(dptrace.open(path))
        (show_ablations if options.ablate else show_errors)(path.name, replay)


if __name__ == "__main__":
    main()
