"""Files of a small job whose times follow from its dependencies, so that a replay of it is exact."""

from __future__ import annotations

from pathlib import Path

from tests.support.kineto_files import KinetoFile

_AFTER_US = 177
"""From the arrival of the slower rank to the next step: all-reduce 100 µs, optimizer 50, lags, and 20 of the host."""
_COLLECTIVE = {
    "Collective name": "allreduce",
    "In msg nelems": 1024,
    "Out msg nelems": 1024,
    "Group size": 2,
    "dtype": "Float",
    "Process Group Name": "0",
    "Process Group Ranks": "[0, 1]",
}


def job_rank(
    rank: int, forward: int, arrival: int, steps: int = 4, world_size: int = 2, loading: int = 0
) -> KinetoFile:
    """Record a rank of a job that waits for its device at the end of each step.

    ::

        host     L L c10d(w L) w L  cudaDeviceSynchronize ────────────────────────────┤ 20 │ next step
        stream 7   ├ forward ─────┤├ backward 200 ┤             2├ optimizer 50 ┤5
        stream 20                                 2├ wait ├ 100 ┤

    Args:
        forward: length of its forward kernel in µs.
        arrival: when the slower rank arrives at the all-reduce, in µs after the start of the step.
        loading: for how long its host waits for the DataLoader at the start of a step, in µs.
    """
    file = KinetoFile(rank, world_size)
    for step in range(steps):
        length = arrival + _AFTER_US
        begin, ids = 1000 + step * length, 100 * step + 1
        file.label(f"ProfilerStep#{step}", begin, begin + length)
        if loading:
            file.label("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", begin, begin + loading)
        at = begin + loading
        _launch(file, ids, at + 10, "forward", at + 20, at + 20 + forward)
        behind = at + 21 + forward
        _launch(file, ids + 1, at + 20, "backward", behind, behind + 200)
        file.op("c10d::allreduce_", at + 30, at + 60)
        file.event("cuda_runtime", "cudaStreamWaitEvent", at + 35, at + 36)
        arrive, done = behind + 202, arrival + 100 + begin
        _launch(file, ids + 2, at + 40, "ncclDevKernel_AllReduce_Sum_f32", arrive, done, 20, Seq=step, **_COLLECTIVE)
        file.event("cuda_runtime", "cudaStreamWaitEvent", at + 70, at + 71)
        _launch(file, ids + 3, at + 75, "optimizer", done + 2, done + 52)
        file.event("cuda_runtime", "cudaDeviceSynchronize", at + 85, done + 57)
    return file


def _launch(
    file: KinetoFile, number: int, call: float, name: str, start: float, end: float, stream: int = 7, **args: object
) -> None:
    file.event("cuda_runtime", "cudaLaunchKernel", call, call + 5, correlation=number)
    file.event("kernel", name, start, end, tid=stream, device=0, stream=stream, correlation=number, **args)


def write_job(folder: Path, steps: int = 4, ahead_ns: int = 0) -> Path:
    """Write the two ranks of the job: rank 1 has the longer forward, so rank 0 waits for it.

    Args:
        ahead_ns: how far the clock of rank 1 is ahead.
    """
    folder.mkdir(exist_ok=True)
    arrival = 20 + 400 + 1 + 200 + 2
    for rank, forward, clock in ((0, 300, 0), (1, 400, ahead_ns)):
        file = job_rank(rank, forward, arrival, steps)
        file.tail["baseTimeNanoseconds"] += clock
        file.write(folder / f"rank{rank}.json")
    return folder


def write_job_with_modules(folder: Path, steps: int = 4) -> Path:
    """Write the same job with marks of modules: ``layers.0`` launches forward, ``layers.1`` backward and all-reduce."""
    arrival = 20 + 400 + 1 + 200 + 2
    for rank, forward in enumerate((300, 400)):
        file = job_rank(rank, forward, arrival, steps)
        for step in range(steps):
            at = 1000 + step * (arrival + _AFTER_US)
            file.label("dptrace::module layers.0", at + 8, at + 17)
            file.label("dptrace::module layers.1", at + 18, at + 68)
        file.write(folder / f"rank{rank}.json")
    return folder
