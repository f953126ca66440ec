"""Synthetic sweeps: results of timed runs and figures of recorded runs, with known values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from dptrace.bench.execute import Job
from dptrace.bench.recorded import RecordedFigures
from dptrace.bench.store import Store
from dptrace.bench.sweep import SweepRequest, SweepResult, sweep_result
from dptrace.bench.sweep_points import BUCKET_CAP, configs
from dptrace.model.alpha_beta import Line, bucket_ends, predict

MIB = 1 << 20
GRADIENTS = [MIB // 4] * 40
"""Bytes; they become ready evenly, a millisecond apart."""
LINE = Line(1e-3, 4e-9)


def result(step_s: float, steps: int = 30, epochs: int = 1, **more: Any) -> dict[str, Any]:
    """Return the results of a timed run: steps around one time, the first ten twice as long."""
    times = [step_s * (2 if k < 10 else 1 + 0.002 * (k % 5 - 2)) for k in range(steps)]
    about = {"batch_size": 128, "parameters": 10, "device": "CPU", "parameter_bytes": GRADIENTS[::-1]}
    return {**about, "step_s": times, "steps_per_epoch": steps, "epoch_s": [sum(times)] * epochs, **more}


def read(cap_mb: float, line: Line = LINE) -> RecordedFigures:
    """Return the figures of a recorded run with this cap, whose all-reduces take the time of *line*."""
    ends = bucket_ends(GRADIENTS, cap_mb * MIB)
    filled = [sum(GRADIENTS[begin:end]) for begin, end in zip([0, *ends], ends, strict=False)]
    ready = [(end - len(GRADIENTS)) * 1e-3 for end in ends]
    exposed = predict(GRADIENTS, [k * 1e-3 for k in range(len(GRADIENTS))], cap_mb * MIB, line).exposed_s
    comm = sum(line.seconds(size) for size in filled)
    rows = [
        {"step": "ProfilerStep#4", "bucket": k, "bytes": size, "transfer_s": line.seconds(size), "wait_s": 0.0}
        | {"exposed_s": 0.0}
        for k, size in enumerate(filled)
    ]
    return RecordedFigures(
        compute_s=0.1,
        exposed_s=exposed,
        overlapped_s=comm - exposed,
        wall_s=0.1 + exposed,
        collectives=len(filled),
        bytes=sum(filled),
        order=tuple(reversed(range(len(GRADIENTS)))),
        bucket_bytes=tuple(filled),
        ready_s=tuple(ready),
        sent=tuple((size, line.seconds(size)) for size in filled for _ in range(3)),
        buckets=tuple(rows),
    )


@dataclass
class SweepFixture:
    """The folder of a sweep whose runs have ended, and its result."""

    asked: SweepRequest
    store: Store
    result: SweepResult


def make_sweep(
    folder: Path,
    chosen: Mapping[str, Sequence[str]],
    steps: Mapping[str, dict[str, Any]],
    epochs: int = 1,
    mode: str = "ddp",
) -> SweepFixture:
    """Make a sweep with these results, by the values of the options; recorded figures follow from the cap."""
    found = configs(mode, "resnet18", 2, chosen)
    asked = SweepRequest(found, chosen, epochs, 1)
    store = Store(folder)
    store.begin({}, False, False)
    for config in found:
        key = ",".join(value for _, value in config.options)
        store.save(Job(config, 0).name, steps[key])
        recorded = msgspec.to_builtins(read(float(dict(config.options).get(BUCKET_CAP, 25))))
        failed = {"failed": "not recorded: its timed run failed"}
        store.save(Job(config, -1).name, failed if "failed" in steps[key] else recorded)
    return SweepFixture(asked, store, sweep_result(asked, store))
