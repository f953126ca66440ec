"""A small job whose times follow from its dependencies."""

from __future__ import annotations

from pathlib import Path

import pytest

import dptrace
from tests.support.replay_files import job_rank, write_job


@pytest.fixture(scope="session")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the files of two ranks."""
    return write_job(tmp_path_factory.mktemp("replay_job"))


@pytest.fixture(scope="session")
def run(job: Path) -> dptrace.Run:
    """Open them."""
    return dptrace.open(job, cache=False)


# Two jobs in which what is counted and what a step would gain are known.


def opened(folder: pytest.TempPathFactory, name: str, loading: int) -> dptrace.Run:
    """Write a job whose rank 1 computes 5 ms longer; rank 0 may load data meanwhile."""
    place = folder.mktemp(name)
    job_rank(0, 300, 5523, loading=loading).write(place / "rank0.json")
    job_rank(1, 5300, 5523).write(place / "rank1.json")
    return dptrace.open(place, cache=False)


@pytest.fixture(scope="session")
def late(tmp_path_factory: pytest.TempPathFactory) -> dptrace.Run:
    """Rank 1 computes 5 ms longer, and rank 0 waits for it."""
    return opened(tmp_path_factory, "late", 0)


@pytest.fixture(scope="session")
def hidden(tmp_path_factory: pytest.TempPathFactory) -> dptrace.Run:
    """Rank 0 loads data for 5 ms while rank 1 computes: they arrive together."""
    return opened(tmp_path_factory, "hidden", 5000)
