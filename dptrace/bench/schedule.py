"""Run a benchmark's configurations one after the other; each result is written before the next run starts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dptrace.bench.execute import BenchRunError, Settings, run_profiled, run_timed
from dptrace.bench.matrix import BenchConfig
from dptrace.bench.store import Store

__all__ = ["Job", "jobs", "results", "run_all"]


@dataclass(frozen=True, slots=True)
class Job:
    """One training: a repetition of a configuration without the profiler, or its one run with it."""

    config: BenchConfig
    repetition: int
    """0 or more; -1 for the run with the profiler."""

    @property
    def name(self) -> str:
        """The name of its result."""
        return f"{self.config.name}.{'profiled' if self.repetition < 0 else self.repetition}"

    def __str__(self) -> str:
        what = "profiled" if self.repetition < 0 else f"run {self.repetition + 1}"
        return f"{self.config}, {what}"


def jobs(configs: Sequence[BenchConfig], repeat: int, profile: bool = True, profile_first: bool = False) -> list[Job]:
    """Return the trainings in the order in which they run.

    All configurations are timed once before any is timed again, so that a machine that becomes slower affects all of
    them alike. The profiled runs come last, since the table is useful without them, or first.

    Args:
        profile: whether to run each configuration once with the profiler.
        profile_first: whether to do so right before it is timed, so that its split is known while its epochs end.
    """
    if profile_first:
        both = [Job(config, repetition) for config in configs for repetition in (-1, 0)]
        return both + [Job(config, repetition) for repetition in range(1, repeat) for config in configs]
    timed_ones = [Job(config, repetition) for repetition in range(repeat) for config in configs]
    return timed_ones + [Job(config, -1) for config in configs if profile]


def run_all(
    work: Sequence[Job], settings: Settings, store: Store, show: Callable[[Job, bool], None] = lambda job, done: None
) -> None:
    """Run the jobs without a result; failed runs are repeated.

    Args:
        show: called with False before a job runs, and with True when it has a result.

    Raises:
        Interrupted: a signal arrived; the results so far are on disk.
    """
    for job in work:
        before = store.result_if_readable(job.name)
        if before is None or "failed" in before:
            show(job, False)
            store.save(job.name, _run(job, settings, store, _timed_before(job, work)))
        show(job, True)


def _timed_before(job: Job, work: Sequence[Job]) -> bool:
    """Return whether the configuration of a job is timed before it."""
    first = Job(job.config, 0)
    return first in work and work.index(first) < work.index(job)


def _run(job: Job, settings: Settings, store: Store, timed_before: bool) -> dict[str, Any]:
    try:
        if job.repetition >= 0:
            # Repetitions are the same training, whose parameters are kept once.
            return run_timed(job.config, settings if job.repetition == 0 else replace(settings, checkpoints=None))
        timed_result = (store.result_if_readable(Job(job.config, 0).name) if timed_before else None) or {}
        if "failed" in timed_result:
            return {"failed": "not recorded, because its timed run failed"}
        return run_profiled(job.config, settings, store.folder / "traces" / job.config.name)
    except BenchRunError as error:
        return {"failed": str(error)}


def results(configs: Sequence[BenchConfig], repeat: int, store: Store) -> dict[BenchConfig, list[dict[str, Any]]]:
    """Read the repetitions of each configuration from disk, each with the split under ``profiled``."""
    found: dict[BenchConfig, list[dict[str, Any]]] = {}
    for config in configs:
        repetitions = [store.result(Job(config, number).name) for number in range(repeat)]
        split = store.result(Job(config, -1).name)
        good = split if split is not None and "failed" not in split else None
        found[config] = [{**one, "profiled": good} for one in repetitions if one is not None]
    return found
