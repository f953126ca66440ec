"""The folder of a recording."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="recording needs torch")

from dptrace.errors import RecordingError, UsageError  # noqa: E402
from dptrace.record.distributed import RankStore  # noqa: E402
from dptrace.record.messages import LauncherSettings, write_json  # noqa: E402
from dptrace.record.options.catalog import Schedule  # noqa: E402
from dptrace.record.output import LauncherOutput, StandaloneOutput, open_output, write_rank  # noqa: E402
from dptrace.record.rank_metadata import describe  # noqa: E402
from dptrace.record.recording import Recording  # noqa: E402
from dptrace.record.windows import Plan  # noqa: E402


def test_alone_the_folder_is_the_callers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a launcher the run is written next to its path, and refused if the path has other content."""
    monkeypatch.delenv("DPTRACE_RECORDING", raising=False)
    output = open_output(tmp_path / "mine", force=False)
    assert isinstance(output, StandaloneOutput)
    output.begin()
    assert output.folder.is_dir()
    assert not (tmp_path / "mine").exists()
    output.end()
    assert [] == list(tmp_path.iterdir())  # nothing was recorded
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").write_text("")

    with pytest.raises(UsageError):
        open_output(tmp_path / "taken", force=True).begin()


def test_under_the_launcher_its_folder_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A message says that the script's own folder is not used, and rank 0 reports its progress."""
    for name, value in LauncherSettings(str(tmp_path / "stage"), "runs/x").environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    (tmp_path / "stage").mkdir()
    (tmp_path / "stage" / "request-1.json").write_text("{}")  # to the ranks before a restart

    output = open_output("elsewhere", force=False)
    output.begin()
    output.heartbeat(3, 9, 0, 0)

    assert isinstance(output, LauncherOutput)
    assert "runs/x, not in elsewhere" in capsys.readouterr().err
    assert [] == list((tmp_path / "stage").glob("request*"))
    assert ["3", "9", "0", "0"] == (tmp_path / "stage" / "rank0.steps").read_text().split()


def test_rank_0_waits_no_longer_than_until_another_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rank whose training failed writes nothing more; the run is kept as failed, with the reason."""
    monkeypatch.delenv("DPTRACE_RECORDING", raising=False)
    store = torch.distributed.HashStore()
    monkeypatch.setattr("dptrace.record.distributed._store", lambda: store)
    monkeypatch.setenv("WORLD_SIZE", "2")
    outputs = []
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        outputs.append(StandaloneOutput(tmp_path / "mine", False, RankStore("x")))
        outputs[-1].begin()
    plan = Plan.of(Schedule(0, 2, 1))
    piece = describe(Recording(plan, outputs[0]), plan.windows[0], [], 1, [])
    write_json(outputs[0].folder / "rank0.piece.json", piece | {"file": "rank0.pt.trace.json.gz"})

    outputs[1].fail(ValueError("bad batch"))
    outputs[1].end()
    began = time.monotonic()
    outputs[0].end()

    assert time.monotonic() - began < 60  # it would wait for two hours
    info = json.loads((tmp_path / "mine.failed" / "run.json").read_text())
    assert {"rank": 1, "message": "ValueError: bad batch"} == info["failure"]


@pytest.mark.parametrize("text", ['{"traceEvents": [', ""])
def test_a_trace_without_its_end_is_not_kept(tmp_path: Path, text: str) -> None:
    """Kineto raises no error on a full disk; nothing of what it has written stays."""
    with pytest.raises(RecordingError, match="rank0"):
        write_rank(tmp_path, lambda path: Path(path).write_text(text), {"rank": 0})

    assert [] == list(tmp_path.iterdir())
