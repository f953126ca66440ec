"""Checkpoints: whole or absent, read without running code, the same one on every rank; and real restarts."""

from __future__ import annotations

import copy
import io
import json
import os
import pickle
import random
import zipfile
from pathlib import Path
from threading import Barrier, Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from dptrace.errors import DptraceError, UsageError
from tests.support.elastic import trained
from tests.support.recordings import dptrace
from tests.support.threads import in_threads

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from dptrace.trainers.parts.checkpoints import Checkpoints


class _Ranks:
    """Threads that play the ranks of a job."""

    def __init__(self, size: int) -> None:
        self.size, self._barrier, self._lock = size, Barrier(size, timeout=60), Lock()
        self._texts: dict[str, str] = {}
        self._answers: dict[str, list[bool]] = {}
        self.rank = 0

    def barrier(self, barrier_name: str, timeout: object) -> bool:
        self._barrier.wait()
        return True

    def publish(self, what: str, text: str) -> None:
        self._texts[what] = text
        self._barrier.wait()

    def receive(self, what: str) -> str:
        self._barrier.wait()
        return self._texts[what]

    def any(self, question: str, answer: bool, timeout: object) -> bool:
        with self._lock:
            self._answers.setdefault(question, []).append(answer)
        self._barrier.wait()
        found = any(self._answers[question])
        self._barrier.wait()
        self._answers.pop(question, None)
        return found

    def checkpoints(self, folder: Path, settings: dict[str, Any], each_rank: bool = True) -> list[Checkpoints]:
        from dptrace.trainers.parts.checkpoints import Checkpoints

        everyone: list[Any] = [copy.copy(self) for _ in range(self.size)]
        for number, ranks in enumerate(everyone):
            ranks.rank = number
        return [Checkpoints(folder, settings, ranks, each_rank) for ranks in everyone]


def _alone(folder: Path, **settings: Any) -> Checkpoints:
    return _Ranks(1).checkpoints(folder, settings)[0]


def _save(parts: list[Checkpoints], *steps: int) -> None:
    def save(rank: int) -> None:
        for step in steps:
            parts[rank].save(step, {"model": {"w": torch.full((2,), 10.0 * step + rank)}})

    in_threads(save, len(parts))


def _load(parts: list[Checkpoints]) -> list[Any]:
    return in_threads(lambda rank: parts[rank].load_newest(100), len(parts))


@pytest.mark.parametrize("each_rank", [True, False])
def test_the_last_two_are_kept_and_the_newest_is_found(each_rank: bool, tmp_path: Path) -> None:
    """A file of each rank, or one for all; unfinished ones of earlier attempts go, and what is no checkpoint stays."""
    parts = _Ranks(2).checkpoints(tmp_path, {"lr": 0.1}, each_rank)
    assert [None, None] == _load(parts)
    (tmp_path / ".step-00000002.part").mkdir()
    (tmp_path / ".step-00000002.part" / "rank00000.pt").write_bytes(b"half")
    (tmp_path / "step-00000001").write_text("a file")
    _save(parts, 5, 10, 15)

    assert {"step-00000001", "step-00000010", "step-00000015"} == {path.name for path in tmp_path.iterdir()}
    files = ["rank00000.pt", "rank00001.pt"][: 1 + each_rank]
    assert files == sorted(path.name for path in (tmp_path / "step-00000015").iterdir())
    expected = [[150.0, 150.0], [150.0 + each_rank, 150.0 + each_rank]]
    assert expected == [content["model"]["w"].tolist() for content in _load(parts)]
    before = in_threads(lambda rank: parts[rank].load_newest(15), 2)  # the end of the training
    assert [10, 10] == [content["step"] for content in before]


@pytest.mark.parametrize("damage", ["cut", "gone", "changed"])
def test_all_ranks_pass_over_a_checkpoint_of_which_one_part_is_damaged(damage: str, tmp_path: Path) -> None:
    """Rank 0's part is intact, and it takes the older one, as rank 1 must; the damaged step can be saved again."""
    parts = _Ranks(2).checkpoints(tmp_path, {})
    _save(parts, 5, 10)
    part = parts[1].file(10)
    content = part.read_bytes()
    part.unlink()
    if damage == "cut":
        part.write_bytes(content[:100])
    elif damage == "changed":  # numbers that have changed on the disk, in a file of the right length
        part.write_bytes(content.replace(np.full(2, 101, np.float32).tobytes(), np.full(2, 7, np.float32).tobytes()))

    assert [5, 5] == [content["step"] for content in _load(parts)]
    assert [0, 1] == [len(rank.damaged) for rank in parts]
    assert str(part) in parts[1].damaged[0]
    _save(parts, 10)
    assert [10, 10] == [content["step"] for content in _load(parts)]
    for step in (5, 10):
        parts[1].file(step).write_bytes(b"")
    with pytest.raises(DptraceError, match=rf"(?s)No checkpoint can be read.*remove {tmp_path} or choose"):
        _load(parts)


def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path) -> None:
    """Another learning rate, batch size, compression or number of ranks; where one rank writes, any number reads."""
    _alone(tmp_path, lr=0.1, batch_size=8).save(5, {})
    with pytest.raises(UsageError, match=r"batch-size 8, not 16"):
        _alone(tmp_path, lr=0.1, batch_size=16).load_newest(100)
    with pytest.raises(UsageError, match="compress none, not fp16"):
        _alone(tmp_path, lr=0.1, batch_size=8, compress="fp16").load_newest(100)
    _save(_Ranks(2).checkpoints(tmp_path / "two", {}), 5)
    with pytest.raises(UsageError, match="ranks 2, not 1"):
        _alone(tmp_path / "two").load_newest(100)
    _Ranks(1).checkpoints(tmp_path / "one", {}, each_rank=False)[0].save(5, {})
    assert [5, 5] == [content["step"] for content in _load(_Ranks(2).checkpoints(tmp_path / "one", {}, False))]


def test_a_folder_that_cannot_be_written_or_is_not_shared_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the folder; where rank 0 finds only its own file, no checkpoint appears."""
    from dptrace.trainers.parts import checkpoints as record_checkpoints

    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DptraceError, match=rf"{tmp_path}/file/.*cannot be written"):
        _alone(tmp_path / "file").save(1, {})
    monkeypatch.setattr(record_checkpoints, "_VISIBLE_AFTER_S", 0.0)
    ranks = _Ranks(2)
    parts = [ranks.checkpoints(tmp_path / f"machine{rank}", {})[rank] for rank in range(2)]
    with pytest.raises(DptraceError, match="must share the folder"):
        _save(parts, 5)
    assert [] == list((tmp_path / "machine0").glob("step*"))


def _saved(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def _whole(**changes: Any) -> dict[str, Any]:
    return {"schema": 2, "step": 5, "facts": {}, "model": {"w": torch.ones(2)}} | changes


def _rewritten(content: bytes, compression: int = zipfile.ZIP_STORED, **members: bytes) -> bytes:
    """Return an archive with some members replaced or added."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(buffer, "w", compression) as new:
        for name in old.namelist():
            if name.rpartition("/")[2].replace(".", "_") not in members:
                new.writestr(name, old.read(name))
        for name, data in members.items():
            new.writestr(f"archive/{name.replace('_', '.')}", data)
    return buffer.getvalue()


class _Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch ran",)


HOSTILE = {
    "a text": b"no zip at all",
    "empty": b"",
    "a pickle": pickle.dumps(_whole(facts=_Evil())),
    "code in a checkpoint": _saved(_whole(facts=_Evil())),
    "code in the model": _saved(_whole(model={"w": _Evil()})),
    "code in the index": _rewritten(_saved(_whole()), data_pkl=pickle.dumps(_Evil())),
    "TorchScript": _rewritten(_saved(_whole()), constants_pkl=b"x"),
    "compressed": _rewritten(_saved(_whole()), zipfile.ZIP_DEFLATED),
    "a bomb": _rewritten(_saved(_whole()), zipfile.ZIP_DEFLATED, data_pkl=bytes(1 << 24)),
    "a list": _saved([1, 2]),
    "another step": _saved(_whole(step=6)),
    "another schema": _saved(_whole(schema=1)),
    "no facts": _saved({"schema": 2, "step": 5}),
    "facts of another type": _saved(_whole(facts=[1])),
    "a tensor in the facts": _saved(_whole(facts={"lr": torch.ones(2)})),
    "a pipe": None,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_refused_and_not_run(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each counts as damaged; the error has one line, which does not recommend to run it, and no reader waits."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "step-00000005").mkdir()
    path, content = tmp_path / "step-00000005" / "rank00000.pt", HOSTILE[kind]
    os.mkfifo(path) if content is None else path.write_bytes(content)
    with pytest.raises(DptraceError, match="No checkpoint can be read") as error:
        _alone(tmp_path, lr=0.1).load_newest(100)
    assert not {"\n", "weights_only"} & {*str(error.value), *str(error.value).split()}
    assert not (tmp_path / "ran").exists()


def test_settings_from_a_file_are_shown_in_a_line(tmp_path: Path) -> None:
    """Without what a terminal would obey, and not at any length."""
    (tmp_path / "step-00000005").mkdir()
    facts = {"ranks": 1, "model": "\x1b[31m\n" + "long " * 1000}
    (tmp_path / "step-00000005" / "rank00000.pt").write_bytes(_saved(_whole(facts=facts)))
    with pytest.raises(UsageError, match=r"belongs to another training: model .*not mlp") as error:
        _alone(tmp_path, model="mlp").load_newest(100)

    assert not {"\x1b", "\n"} & set(str(error.value))
    assert len(str(error.value)) < 1000


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


_MODES = {
    "fsdp": ("2", "small", "64"),
    "pp": ("2", "small", "64"),
    "moe": ("2", "gpt-tiny", "4"),
}


@pytest.mark.slow
@pytest.mark.spawn
@pytest.mark.parametrize("mode", _MODES)
def test_a_resumed_training_equals_one_that_ran_through(mode: str, tmp_path: Path) -> None:
    """From the checkpoint of step 4 on, the last two steps lead to the same parameters, bit for bit."""
    ranks, model, batch = _MODES[mode]
    training = ["--mode", mode, "--gpus", ranks, "--model", model, "--batch-size", batch, "--optimizer", "adamw"]
    schedule = ["--warmup", "2", "--wait", "0", "--steps", "4", "--checkpoint-every", "4", "--checkpoints", "kept"]
    for name, more in (("whole", []), ("rest", ["--resume"])):
        out = ["-o", name, "--save-parameters", f"{name}.npz"]
        dptrace("record", *training, *schedule, *out, *more, cwd=tmp_path)

    whole, rest = np.load(tmp_path / "whole.npz"), np.load(tmp_path / "rest.npz")
    assert whole.files == rest.files
    assert all(np.array_equal(whole[name], rest[name]) for name in whole.files)
    runs = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("whole", "rest")]
    assert "continued from the checkpoint of step 4" in runs[1]["notes"][0]
    assert runs[0]["losses"][-2:] == runs[1]["losses"]
    # moe counts the tokens of each expert over all steps.
    assert runs[0]["options"].get("expert_load") == runs[1]["options"].get("expert_load")
