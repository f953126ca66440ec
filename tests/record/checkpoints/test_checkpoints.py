"""Checkpoints: written atomically, read without running code, used for the same training only; and real restarts."""

from __future__ import annotations

import json
import os
import pickle
import random
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dptrace.errors import DptraceError, UsageError
from tests.support.elastic import trained
from tests.support.recordings import dptrace, environment

torch = pytest.importorskip("torch")

CPU = torch.device("cpu")


def test_the_last_two_are_kept_and_the_newest_is_found(tmp_path: Path) -> None:
    """Older ones are deleted; a training continues only from a checkpoint before its end."""
    from dptrace.record.checkpoints.checkpoints import Checkpoints

    checkpoints = Checkpoints(tmp_path / "new", {"model": "small"})
    assert checkpoints.load_newest(100, CPU) is None
    for step in (5, 10, 15):
        checkpoints.save(step, {"model": {"w": torch.full((2,), float(step))}})

    assert [10, 15] == checkpoints.steps()
    assert 15 == (checkpoints.load_newest(100, CPU) or {})["step"]
    assert 10 == (checkpoints.load_newest(15, CPU) or {})["step"]
    assert [10.0, 10.0] == (checkpoints.load_newest(15, CPU) or {})["model"]["w"].tolist()
    assert {"step-00000010.pt", "step-00000015.pt"} == {path.name for path in (tmp_path / "new").iterdir()}


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(tmp_path: Path) -> None:
    """A damaged checkpoint costs some steps, not the training; if all are damaged, the error says so."""
    from dptrace.record.checkpoints.checkpoints import Checkpoints

    checkpoints = Checkpoints(tmp_path, {})
    for step in (5, 10):
        checkpoints.save(step, {})
    checkpoints.path(10).write_bytes(checkpoints.path(10).read_bytes()[:100])
    assert 5 == (checkpoints.load_newest(100, CPU) or {})["step"]
    checkpoints.path(5).write_bytes(b"")
    with pytest.raises(DptraceError, match=rf"(?s)No checkpoint can be read.*remove {tmp_path} or choose"):
        checkpoints.load_newest(100, CPU)


def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path) -> None:
    """A checkpoint with another learning rate, batch size or compression is not used."""
    from dptrace.record.checkpoints.checkpoints import Checkpoints

    Checkpoints(tmp_path, {"lr": 0.1, "batch_size": 8}).save(5, {})
    with pytest.raises(UsageError, match=r"batch-size 8, not 16"):
        Checkpoints(tmp_path, {"lr": 0.1, "batch_size": 16}).load_newest(100, CPU)
    with pytest.raises(UsageError, match="compress none, not fp16"):
        Checkpoints(tmp_path, {"lr": 0.1, "batch_size": 8, "compress": "fp16"}).load_newest(100, CPU)


def test_nothing_in_a_checkpoint_is_executed(tmp_path: Path) -> None:
    """A pickle that would run a command counts as damaged."""
    from dptrace.record.checkpoints.checkpoints import Checkpoints

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {tmp_path / 'ran'}",)

    checkpoints = Checkpoints(tmp_path, {})
    checkpoints.path(5).write_bytes(pickle.dumps({"step": 5, "facts": Evil()}))
    with pytest.raises(DptraceError, match="No checkpoint can be read"):
        checkpoints.load_newest(100, CPU)
    assert not (tmp_path / "ran").exists()


def test_a_folder_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    """The error names the folder, and no partial file is left."""
    from dptrace.record.checkpoints.checkpoints import Checkpoints

    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DptraceError, match="cannot be written"):
        Checkpoints(tmp_path / "file", {}).save(1, {})


@pytest.mark.slow
@pytest.mark.spawn
def test_a_training_goes_on_after_kills_and_ends_as_if_undisturbed(tmp_path: Path) -> None:
    """Ranks are killed at random moments: training continues from the last checkpoint, and run.json lists the restarts.

    The parameters are bit for bit those of the same training without kills.
    """
    chance = random.Random(os.getpid())
    calm, disturbed = (trained(tmp_path, kills, chance, "ddp") for kills in (0, 2))

    assert calm["parameters"].keys() == disturbed["parameters"].keys()
    assert all(np.array_equal(calm["parameters"][name], disturbed["parameters"][name]) for name in calm["parameters"])
    assert [] == disturbed["leftover"] == calm["run"]["restarts"]
    restarts = disturbed["run"]["restarts"]
    assert [number for number, _ in disturbed["killed"]] == [restart["rank"] for restart in restarts]
    assert all("SIGKILL" in restart["message"] for restart in restarts)
    # One note per rank: both kills may have met the same rank.
    restarted_ranks = {restart["rank"] for restart in restarts}
    assert len(restarted_ranks) == sum("restarted" in note for note in disturbed["run"]["notes"])
    assert "complete" == disturbed["run"]["status"]


@pytest.mark.slow
@pytest.mark.spawn
def test_a_training_is_resumed_where_it_ended(tmp_path: Path) -> None:
    """Six steps and then four more equal ten; without --resume old checkpoints are neither used nor replaced."""
    common = ["record", "--mode", "naive", "--gpus", "2", "--model", "small", "--batch-size", "64", "--warmup", "2"]
    saving = ["--checkpoint-every", "3", "--checkpoints", "kept"]
    dptrace(*common, "--wait", "2", "--steps", "6", "-o", "whole", "--save-parameters", "whole.npz", cwd=tmp_path)
    dptrace(*common, "--wait", "2", "--steps", "2", "-o", "part", *saving, cwd=tmp_path)
    refused = dptrace(*common, "--wait", "2", "--steps", "6", "-o", "rest", *saving, cwd=tmp_path, ok=False)
    more = [*common, "--wait", "2", "--steps", "6", "-o", "rest", *saving, "--resume", "--save-parameters", "rest.npz"]
    resumed = dptrace(*more, cwd=tmp_path)

    assert (2, True) == (refused.returncode, "Continue from the last one with --resume" in refused.stderr)
    assert "continued from the checkpoint of step 6" in resumed.stderr
    whole, rest = np.load(tmp_path / "whole.npz"), np.load(tmp_path / "rest.npz")
    assert all(np.array_equal(whole[name], rest[name]) for name in whole.files)
    assert json.loads((tmp_path / "rest" / "run.json").read_text())["ranks"][0]["recorded_steps"] == 4


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.slow
@pytest.mark.spawn
def test_two_machines_record_one_run(tmp_path: Path) -> None:
    """Two launchers with two ranks each, as on two machines that share a folder, write one run with nodes and ranks."""
    where = ["--nnodes", "2", "--rdzv-endpoint", f"127.0.0.1:{_free_port()}"]
    what = ["record", "--mode", "hierarchical", "--gpus", "2", "--model", "small", "--batch-size", "64", "-o", "both"]
    less = ["--steps", "2", "--warmup", "2", "--wait", "2"]
    nodes = [
        subprocess.Popen(
            [sys.executable, "-m", "dptrace", *what, *less, *where, "--node-rank", str(node)],
            cwd=tmp_path,
            env=environment(),
            stderr=subprocess.PIPE,
            text=True,
        )
        for node in range(2)
    ]
    errors = [node.communicate(timeout=180)[1] for node in nodes]
    assert [0, 0] == [node.returncode for node in nodes], errors
    run = json.loads((tmp_path / "both" / "run.json").read_text())

    assert [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)] == [
        (r["rank"], r["node"], r["local_rank"]) for r in run["ranks"]
    ]
    assert (4, 2) == (run["world_size"], run["nnodes"])
    assert "machine 0" in errors[1]
    # One folder holds the traces of all ranks.
    names = {path.name for path in (tmp_path / "both").iterdir() if path.suffix != ".log"}
    assert {"run.json", *(f"rank{rank}.pt.trace.json.gz" for rank in range(4))} == names


def test_numbers_that_changed_on_the_disk_are_not_trained_on(tmp_path: Path) -> None:
    """A file of the right length with changed bytes is damaged, and reported."""
    from dptrace.record.checkpoints.checkpoints import Checkpoints

    checkpoints = Checkpoints(tmp_path, {})
    for step in (5, 10):
        checkpoints.save(step, {"model": {"w": torch.arange(4000.0)}})
    content = bytearray(checkpoints.path(10).read_bytes())
    middle = len(content) // 2
    content[middle : middle + 400] = bytes(400)
    checkpoints.path(10).write_bytes(content)

    assert 5 == (checkpoints.load_newest(100, CPU) or {})["step"]
    assert 1 == len(checkpoints.damaged)
    assert "step-00000010.pt" in checkpoints.damaged[0]


def test_what_a_killed_rank_had_half_written_goes(tmp_path: Path) -> None:
    """The next checkpoint deletes the partial file of the last attempt."""
    from dptrace.record.checkpoints.checkpoints import Checkpoints

    (tmp_path / ".step-00000004.pt.123.part").write_bytes(b"half")
    Checkpoints(tmp_path, {}).save(5, {})

    assert ["step-00000005.pt"] == [path.name for path in tmp_path.iterdir()]
