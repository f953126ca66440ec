"""A file of a checkpoint from a stranger: nothing in it is executed, and what is wrong is one sentence."""

from __future__ import annotations

import io
import os
import pickle
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from dptrace.errors import DptraceError, UsageError

torch = pytest.importorskip("torch")

CPU = torch.device("cpu")


def _saved(content: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def _whole(**changes: Any) -> dict[str, Any]:
    return {"schema": 1, "step": 5, "facts": {}, "model": {"w": torch.ones(2)}} | changes


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
    "code in the index": _rewritten(_saved(_whole()), data_pkl=pickle.dumps(_Evil())),
    "TorchScript": _rewritten(_saved(_whole()), constants_pkl=b"x"),
    "compressed": _rewritten(_saved(_whole()), zipfile.ZIP_DEFLATED),
    "a bomb": _rewritten(_saved(_whole()), zipfile.ZIP_DEFLATED, data_pkl=bytes(1 << 24)),
    "a list": _saved([1, 2]),
    "another step": _saved(_whole(step=6)),
    "another schema": _saved(_whole(schema=2)),
    "no facts": _saved({"schema": 1, "step": 5}),
    "facts of another type": _saved(_whole(facts=[1])),
    "a tensor in the facts": _saved(_whole(facts={"lr": torch.ones(2)})),
    "a list in the facts": _saved(_whole(facts={"lr": [torch.ones(2)]})),
    "a parameter": _saved(_whole(model={"w": torch.nn.Parameter(torch.ones(2))})),
    "an ordered state": _saved(_whole(model=OrderedDict(w=torch.Size([1, 2])), more=torch.device("cpu"))),
    "sparse": _saved(_whole(model={"w": {("a", "b"): 1}})),
    "deep": _saved(_whole(model={"a": [[[[[[[[[[[[1]]]]]]]]]]]]})),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_refused_and_not_run(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each counts as damaged; the error has one line."""
    from dptrace.record.checkpoints.checkpoints import Checkpoints

    monkeypatch.chdir(tmp_path)
    (tmp_path / "step-00000005.pt").write_bytes(HOSTILE[kind])
    with pytest.raises(DptraceError, match="No checkpoint can be read") as error:
        Checkpoints(tmp_path, {"lr": 0.1}).load_newest(100, CPU)
    assert "\n" not in str(error.value)
    assert "weights_only" not in str(error.value)  # the message must not recommend to run it
    assert not (tmp_path / "ran").exists()


def test_settings_from_a_file_are_shown_in_a_line(tmp_path: Path) -> None:
    """Without what a terminal would obey, and not at any length."""
    from dptrace.record.checkpoints.checkpoints import Checkpoints

    (tmp_path / "step-00000005.pt").write_bytes(_saved(_whole(facts={"model": "\x1b[31m\n" + "long " * 1000})))
    with pytest.raises(UsageError, match=r"belongs to another training: model .*not mlp") as error:
        Checkpoints(tmp_path, {"model": "mlp"}).load_newest(100, CPU)

    assert not {"\x1b", "\n"} & set(str(error.value))
    assert len(str(error.value)) < 1000


def test_what_is_no_file_is_neither_read_nor_deleted(tmp_path: Path) -> None:
    """A folder, a pipe, which would block, and a link into nowhere, all named as checkpoints are."""
    from dptrace.record.checkpoints.checkpoints import Checkpoints

    (tmp_path / "step-00000001.pt").mkdir()
    os.mkfifo(tmp_path / "step-00000002.pt")
    (tmp_path / "step-00000003.pt").symlink_to(tmp_path / "nowhere")
    checkpoints = Checkpoints(tmp_path, {})
    with pytest.raises(DptraceError, match="not a file"):
        checkpoints.load_newest(100, CPU)
    for step in (5, 6, 7):
        checkpoints.save(step, {})

    assert 7 == (checkpoints.load_newest(100, CPU) or {})["step"]
    assert (tmp_path / "step-00000001.pt").is_dir()


def test_a_linked_checkpoint_is_read(tmp_path: Path) -> None:
    """A link to an intact file is as good as the file."""
    from dptrace.record.checkpoints.file import read_checkpoint, write_checkpoint

    write_checkpoint(tmp_path / "elsewhere.pt", 5, {"lr": 0.1}, {"model": {"w": torch.ones(2)}})
    (tmp_path / "step-00000005.pt").symlink_to(tmp_path / "elsewhere.pt")

    assert [1.0, 1.0] == read_checkpoint(tmp_path / "step-00000005.pt", 5, CPU)["model"]["w"].tolist()
