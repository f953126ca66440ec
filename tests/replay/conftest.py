"""A small job whose times follow from its dependencies."""

from __future__ import annotations

from pathlib import Path

import pytest

import dptrace
from tests.support.replay_files import write_job


@pytest.fixture(scope="session")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the files of two ranks."""
    return write_job(tmp_path_factory.mktemp("replay_job"))


@pytest.fixture(scope="session")
def run(job: Path) -> dptrace.Run:
    """Open them."""
    return dptrace.open(job, cache=False)
