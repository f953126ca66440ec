"""The time of a critical path by module, and which module a task is of."""

from __future__ import annotations

from pathlib import Path

import pytest

import dptrace
from dptrace.replay.critical_path import CriticalPath
from tests.support.replay_files import write_job_with_modules
from tests.test_public_frames import check


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> dptrace.Run:
    return dptrace.open(write_job_with_modules(tmp_path_factory.mktemp("modules")), cache=False)


def test_the_modules_add_up_to_the_step(run: dptrace.Run) -> None:
    """Of 800 µs: the forward kernel of 400, the backward one of 200, the all-reduce of 100, and the rest."""
    path = run.critical_path("ProfilerStep#1")
    found = {one.module: one for one in path.by_module}

    assert 800_000 == path.length_ns == sum(one.path_ns for one in path.by_module)
    assert 400_000 == found["layers.0"].by_kind["compute"]
    assert 200_000 == found["layers.1"].by_kind["compute"]
    assert 100_000 == found["layers.1"].by_kind["transfer"]
    assert all(one.path_ns == sum(one.by_kind.values()) for one in path.by_module)


def test_a_tenth_less_of_a_module_gains_what_a_replay_says(run: dptrace.Run) -> None:
    """Kernels of 400 µs on the slower rank, with 10 µs of its host before them, gain 41; 300 of the other module 30."""
    gains = {one.module: one.gain_ns for one in run.critical_path().by_module}

    assert (41_000, 30_000, None) == (gains["layers.0"], gains["layers.1"], gains["(no module)"])


def test_a_run_without_modules_has_none(tmp_path: Path) -> None:
    """Annotations do not take their place."""
    from tests.support.replay_files import write_job

    path = dptrace.open(write_job(tmp_path), cache=False).critical_path()

    assert () == path.by_module
    assert [] == path.to_dict()["modules"]
    assert 0 == len(path.modules())


def test_the_frames_are_documented(run: dptrace.Run) -> None:
    """Each column of both tables of a path, with its dtype and unit."""
    path = run.critical_path()

    check(CriticalPath.modules, [path.modules()])
    check(CriticalPath.kernels, [path.kernels()])
