"""Measure size and speed of ``dptrace export`` on a synthetic run: ``python benchmarks/export.py [KERNELS]``."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from dptrace.export.formats import FORMATS, write_trace
from dptrace.export.tracks import align_run
from dptrace.run.run import Run
from dptrace.timeline.model import Collective, Kind, Phase, Timeline, Windows

NAMES = tuple(
    f"void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, {k}ul>>"
    for k in range(300)
)
EPOCH = 1_763_683_646_000_000_000


def synthetic_timeline(rank: int, kernels: int) -> Timeline:
    """Build ten steps: a kernel of 0.8 µs every microsecond, and an all-reduce of 5 µs under every twentieth.

    The host is 10 to 29 kernels ahead, and each rank's clock is 3 ms ahead of the previous rank's.
    """
    epoch = EPOCH + rank * 3_000_000
    start = epoch + np.arange(kernels, dtype=np.int64) * 1000
    reduced = start[::20] + 500
    starts = np.concatenate([start, reduced])
    order = np.argsort(starts, kind="stable")
    is_comm = np.repeat([False, True], [kernels, len(reduced)])[order]
    step = (starts[order] - epoch) // (kernels * 100)
    return Timeline(
        rank=rank,
        device=rank,
        device_name="synthetic",
        start_ns=starts[order],
        end_ns=starts[order] + np.where(is_comm, 5000, 800),
        name=np.where(is_comm, len(NAMES), np.arange(len(starts))[order] % len(NAMES)).astype(np.int32),
        names=(*NAMES, "ncclDevKernel_AllReduce_Sum_f32_RING_LL"),
        kind=np.where(is_comm, Kind.COMMUNICATION, Kind.COMPUTE).astype(np.uint8),
        phase=np.where(is_comm, Phase.BACKWARD, np.arange(len(starts)) // 1000 % 3).astype(np.uint8),
        step=np.minimum(step, 9).astype(np.int32),
        lane=np.where(is_comm, 20, 7),
        collective=np.where(is_comm, np.cumsum(is_comm) - 1, -1).astype(np.int32),
        collectives=tuple(Collective("all_reduce", 26_214_400, "Float", "0", 8, k) for k in range(len(reduced))),
        windows=Windows(tuple(f"ProfilerStep#{k}" for k in range(10)), epoch + np.arange(11) * kernels * 100),
        launch_ns=starts[order] - 10_000 - np.arange(len(starts)) % 20 * 1000,
    )


def main() -> None:
    """Print a line for the alignment of the ranks, and one for each format."""
    kernels = int(sys.argv[1]) if len(sys.argv) > 1 else 300_000
    run = Run("synthetic", tuple(synthetic_timeline(rank, kernels // 2) for rank in range(2)))
    began = time.process_time()
    aligned_run = align_run(run)
    print(f"collectives matched and clocks aligned: {time.process_time() - began:.1f} s; {aligned_run.clock_summary}")
    with tempfile.TemporaryDirectory() as folder:
        for suffix in FORMATS:
            path = Path(folder, f"x{suffix}")
            began = time.process_time()
            slices = write_trace(run, path, suffix, aligned_run=aligned_run)
            seconds, size = time.process_time() - began, path.stat().st_size
            print(
                f"{suffix:<9} {slices:>9,} slices {size / 1e6:>7.1f} MB {size / slices:>6.1f} B/slice "
                f"{seconds:>6.1f} s {slices / seconds:>9,.0f} slices/s"
            )


if __name__ == "__main__":
    main()
