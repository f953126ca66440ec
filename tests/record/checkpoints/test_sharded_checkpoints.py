"""Checkpoints to which every rank adds its part: whole or absent, and the same one on every rank."""

from __future__ import annotations

import json
from pathlib import Path
from threading import Barrier, Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from dptrace.errors import DptraceError, UsageError
from tests.support.recordings import dptrace
from tests.support.threads import in_threads

if TYPE_CHECKING:
    from dptrace.record.checkpoints.checkpoints import ShardedCheckpoints

torch = pytest.importorskip("torch")

CPU = torch.device("cpu")


class _Ranks:
    """Threads that play the ranks of a job."""

    def __init__(self, size: int) -> None:
        self.size, self._barrier, self._lock = size, Barrier(size, timeout=60), Lock()
        self._texts: dict[str, str] = {}
        self._votes: list[bool] = []

    def barrier(self, barrier_name: str, timeout: object) -> bool:
        self._barrier.wait()
        return True

    def publish(self, what: str, text: str) -> None:
        self._texts[what] = text
        self._barrier.wait()

    def receive(self, what: str) -> str:
        self._barrier.wait()
        return self._texts[what]

    def all_true(self, mine: bool) -> bool:
        with self._lock:
            self._votes.append(mine)
        self._barrier.wait()
        agreed = all(self._votes)
        self._barrier.wait()
        self._votes.clear()
        self._barrier.wait()
        return agreed

    def checkpoints(self, folder: Path, settings: dict[str, Any]) -> list[ShardedCheckpoints]:
        from dptrace.record.checkpoints.checkpoints import Peers, ShardedCheckpoints

        everyone = [Peers(rank, self.size, self, self.all_true) for rank in range(self.size)]
        return [ShardedCheckpoints(folder, settings, peers) for peers in everyone]


def _save(parts: list[ShardedCheckpoints], *steps: int) -> None:
    def save(rank: int) -> None:
        for step in steps:
            parts[rank].save(step, {"model": {"w": torch.full((2,), 10.0 * step + rank)}})

    in_threads(save, len(parts))


def _load(parts: list[ShardedCheckpoints]) -> list[Any]:
    return in_threads(lambda rank: parts[rank].load_newest(100, CPU), len(parts))


def test_the_last_two_are_kept_and_each_rank_gets_its_own_part(tmp_path: Path) -> None:
    """A checkpoint is a folder with a file of each rank; unfinished ones of earlier attempts go."""
    parts = _Ranks(2).checkpoints(tmp_path, {"lr": 0.1})
    assert [None, None] == _load(parts)
    (tmp_path / ".step-00000002.part").mkdir()
    (tmp_path / ".step-00000002.part" / "rank00000.pt").write_bytes(b"half")
    _save(parts, 5, 10, 15)

    assert {"step-00000010", "step-00000015"} == {path.name for path in tmp_path.iterdir()}
    assert ["rank00000.pt", "rank00001.pt"] == sorted(path.name for path in (tmp_path / "step-00000015").iterdir())
    assert [[150.0, 150.0], [151.0, 151.0]] == [content["model"]["w"].tolist() for content in _load(parts)]


@pytest.mark.parametrize("damage", ["cut", "gone"])
def test_all_ranks_pass_over_a_checkpoint_of_which_one_part_is_damaged(damage: str, tmp_path: Path) -> None:
    """Rank 0's part is intact, and it takes the older one, as rank 1 must; the damaged step can be saved again."""
    parts = _Ranks(2).checkpoints(tmp_path, {})
    _save(parts, 5, 10)
    part = parts[1].file(10)
    part.write_bytes(part.read_bytes()[:100]) if damage == "cut" else part.unlink()

    assert [5, 5] == [content["step"] for content in _load(parts)]
    assert [0, 1] == [len(rank.damaged) for rank in parts]
    _save(parts, 10)
    assert [10, 10] == [content["step"] for content in _load(parts)]
    for step in (5, 10):
        parts[1].file(step).write_bytes(b"")
    with pytest.raises(DptraceError, match="No checkpoint can be read"):
        _load(parts)


def test_another_number_of_ranks_is_another_training(tmp_path: Path) -> None:
    """The message says how many ranks it had."""
    _save(_Ranks(2).checkpoints(tmp_path, {"ranks": 2}), 5)
    with pytest.raises(UsageError, match="ranks 2, not 1"):
        _load(_Ranks(1).checkpoints(tmp_path, {"ranks": 1}))


def test_a_folder_that_the_ranks_do_not_share_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 finds only its own file: no checkpoint appears, and the message says what to choose."""
    from dptrace.record.checkpoints import checkpoints

    monkeypatch.setattr(checkpoints, "_VISIBLE_AFTER_S", 0.0)
    ranks = _Ranks(2)
    parts = [ranks.checkpoints(tmp_path / f"machine{rank}", {})[rank] for rank in range(2)]
    with pytest.raises(DptraceError, match="must share the folder"):
        _save(parts, 5)
    assert [] == parts[0].steps()


_MODES = {
    "fsdp": ("2", "small", "64"),
    "pp": ("2", "small", "64"),
    "moe": ("2", "gpt-tiny", "4"),
}


@pytest.mark.slow
@pytest.mark.spawn
@pytest.mark.parametrize("mode", _MODES)
def test_a_resumed_training_equals_one_that_ran_through(mode: str, tmp_path: Path) -> None:
    """From the checkpoint of step 6 on, the last two steps lead to the same parameters, bit for bit."""
    ranks, model, batch = _MODES[mode]
    training = ["--mode", mode, "--gpus", ranks, "--model", model, "--batch-size", batch, "--optimizer", "adamw"]
    schedule = ["--warmup", "2", "--wait", "2", "--steps", "4", "--checkpoint-every", "3", "--checkpoints", "kept"]
    for name, more in (("whole", []), ("rest", ["--resume"])):
        out = ["-o", name, "--save-parameters", f"{name}.npz"]
        dptrace("record", *training, *schedule, *out, *more, cwd=tmp_path)

    whole, rest = np.load(tmp_path / "whole.npz"), np.load(tmp_path / "rest.npz")
    assert whole.files == rest.files
    assert all(np.array_equal(whole[name], rest[name]) for name in whole.files)
    runs = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("whole", "rest")]
    assert "continued from the checkpoint of step 6" in runs[1]["notes"][0]
    assert runs[0]["losses"][-2:] == runs[1]["losses"]
    # moe counts the tokens of each expert over all steps.
    assert runs[0]["options"].get("expert_load") == runs[1]["options"].get("expert_load")
