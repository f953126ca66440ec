"""Benchmark rows for tests: hand-written ones, and the workshop's table, whose experiment ``dptrace bench`` repeats."""

from __future__ import annotations

from dataclasses import replace

from dptrace.bench.table import Row, with_speedup

_SIZES = {
    "a": 1_000_000,
    "b": 9_000_000,
    "small": 1_500_000,
    "medium": 8_400_000,
    "large": 35_200_000,
    "xlarge": 52_000_000,
}
_SAMPLES = 32_768
_MEASURED = {
    "small": (0.0361, (0.0602, 0.0284), 0.0620, 0.0436, (0.0653, 0.0307), 0.0643, 0.0482),
    "medium": (0.1180, (0.1071, 0.0328), 0.0898, 0.0871, (0.0863, 0.0370), 0.0871, 0.0674),
    "large": (0.4112, (0.2850, 0.0501), 0.2644, 0.2597, (0.2143, 0.0744), 0.1837, 0.1784),
    "xlarge": (0.5956, (0.4045, 0.0700), 0.3669, 0.3620, (0.2898, 0.0940), 0.2485, 0.2496),
}
"""Seconds of an epoch (of naive also its communication) on four A100 on PCIe: single; naive, interleaved, DDP on two
GPUs; the same on four. (GPU workshop on data parallelism.)"""
_RATES = {("xlarge", "single", 1): 55_016.0, ("xlarge", "interleaved", 4): 131_844.0}


def bench(model: str, mode: str, gpus: int, epoch_s: float) -> Row:
    """Return a row of one epoch."""
    return Row(model, mode, gpus, _SIZES.get(model), epoch_s, samples_per_s=_SAMPLES / epoch_s)


def _workshop() -> list[Row]:
    cells = [("single", 1), *((mode, gpus) for gpus in (2, 4) for mode in ("naive", "interleaved", "ddp"))]
    rows = []
    for model, measured in _MEASURED.items():
        for (mode, gpus), value in zip(cells, measured, strict=True):
            epoch, comm = value if isinstance(value, tuple) else (value, None)
            row = replace(bench(model, mode, gpus, epoch), comm_s=comm)
            rate = _RATES.get((model, mode, gpus), row.samples_per_s)
            rows.append(replace(row, samples_per_s=rate))
    return with_speedup(rows)


WORKSHOP = _workshop()
_COLUMNS = ["model", "mode", "gpus", "parameters", "epoch_s", "comm_s", "samples_per_s"]
CSV = "\n".join(
    [",".join(_COLUMNS), *(",".join(str(getattr(row, name) or "") for name in _COLUMNS) for row in WORKSHOP), ""]
)


def with_losses(rows: list[Row], steps: int = 8) -> list[Row]:
    """Return the rows with the same mean losses for each model, and local ones that depend on the number of GPUs."""
    filled = []
    for row in rows:
        losses = tuple(2.3 - 0.01 * step for step in range(steps))
        filled.append(replace(row, losses=losses, local_losses=tuple(loss + 0.02 * row.gpus for loss in losses)))
    return filled
