"""The options that srun's variables answer, and those that they do not touch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from dptrace.commands.recording.slurm import check_gpus_of_task, task_of_srun
from dptrace.commands.shared.options import machine_options
from dptrace.errors import UsageError
from dptrace.record.launch.slurm import slurm_task
from tests.support.srun import task_environment


def _options(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], *arguments: str, **more: Any
) -> dict[str, Any]:
    """Return the options of a command line in an environment, after Slurm's variables have been read."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found: dict[str, Any] = {}

    @click.command()
    @machine_options
    @click.option("-o", "--out")
    @click.option("-q", "--quiet", is_flag=True)
    @click.option("-v", "--verbose", is_flag=True)
    def command(**options: Any) -> None:
        chosen = {"mode": "ddp", "gpus": None, "script_name": None} | more
        task = task_of_srun(**chosen, options=options)
        found.update(options, task=task)

    result = CliRunner().invoke(command, arguments)
    if result.exception is not None:
        raise result.exception
    return found


def test_each_task_gets_its_place_and_one_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Number, address and the run's folder follow from the job; all tasks but the first are quiet."""
    options = _options(monkeypatch, task_environment(1, 1, 2))

    assert (2, 1, "localhost:24242") == (options["nnodes"], options["node_rank"], options["rdzv_endpoint"])
    assert ("runs/ddp-4242", True) == (options["out"], options["quiet"])


def test_options_on_the_command_line_win(monkeypatch: pytest.MonkeyPatch) -> None:
    """A given address, number or folder stays; with --nnodes, Slurm's variables do not count."""
    two = task_environment(1, 1, 2)
    options = _options(monkeypatch, two, "--rdzv-endpoint", "host:1", "--node-rank", "0", "-o", "here")
    assert ("host:1", 0, "here") == (options["rdzv_endpoint"], options["node_rank"], options["out"])

    options = _options(monkeypatch, two, "--nnodes", "1")
    assert (None, 1, None) == (options["task"], options["nnodes"], options["out"])


def test_tasks_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mode of one GPU, and a number of GPUs that is not that of the tasks, are told with what to do."""
    environment = task_environment(0, 2, 1)
    with pytest.raises(UsageError, match="srun --ntasks=1"):
        _options(monkeypatch, environment, mode="single")
    with pytest.raises(UsageError, match="--ntasks-per-node=1"):
        _options(monkeypatch, environment, gpus=4)
    assert 2 == _options(monkeypatch, environment, gpus=2)["nnodes"]


def test_a_task_needs_a_gpu_of_its_own() -> None:
    """One GPU or as many as tasks are fine, and so is none; two GPUs for the third task are not."""
    third = slurm_task(task_environment(2, 4, 1))
    assert third is not None
    for gpus in (0, 1, 4):
        check_gpus_of_task(third, gpus)
    with pytest.raises(UsageError, match="--gpus-per-task=1"):
        check_gpus_of_task(third, 2)


def test_without_srun_nothing_changes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a shell of salloc, the options stay as given."""
    monkeypatch.delenv("SLURM_STEP_ID", raising=False)
    options = _options(monkeypatch, {"SLURM_JOB_ID": "1", "SLURM_NNODES": "2", "SLURM_NTASKS": "4"})

    assert (None, 1, None) == (options["task"], options["nnodes"], options["node_rank"])
