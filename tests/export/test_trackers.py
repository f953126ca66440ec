"""What `dptrace log` wrote, read back with each tracker's own reader."""

from __future__ import annotations

import importlib
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dptrace.commands.shared.main import cli
from dptrace.export.trackers import logged
from tests.support.jobs import job
from tests.support.paths import TRACES

RUN = str(TRACES / "ddp_cpu_2ranks")
PAGES = {"dptrace-report.html", "dptrace-gantt.html"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def log(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["log", RUN, *arguments])


def expected() -> dict[int, float]:
    """Return the exposed communication of each step in ms, mean over the ranks, as dptrace analyze has it."""
    ranks = json.loads(CliRunner().invoke(cli, ["analyze", RUN, "--json", "-q"]).stdout)["ranks"]
    steps = zip(*(rank["steps"] for rank in ranks), strict=True)
    return {
        int(step[0]["step"].rpartition("#")[2]): sum(one["exposed_comm_ns"] for one in step) / len(step) / 1e6
        for step in steps
    }


def wandb_records(data: bytes) -> Iterator[bytes]:
    """Yield the records of a .wandb file: after a head of 7 bytes, the log of LevelDB in blocks of 32 kB."""
    at, whole = 7, b""
    while at + 7 <= len(data):
        if 32_768 - at % 32_768 < 7:
            at += 32_768 - at % 32_768
            continue
        length, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            yield whole
            whole = b""


def test_parts_of_a_step_add_up_and_steps_have_their_numbers() -> None:
    """Means over the ranks; the mean step is that of the steps."""
    content = logged(job(steps=5), "x")
    parts = ("forward", "backward", "optimizer", "other", "exposed_comm", "exposed_memory", "idle")

    assert 5 == len(content.steps)
    for _, metrics in (*content.steps, (0, content.summary)):
        assert metrics["dptrace/wall_ms"] == pytest.approx(sum(metrics[f"dptrace/{part}_ms"] for part in parts))
    assert content.summary["dptrace/overlap_percent"] == pytest.approx(100 / 3, abs=0.5)


@pytest.mark.heavy
def test_tensorboard_reads_the_metrics(here: Path) -> None:
    """Each step at its number; the pages lie beside the event file."""
    pytest.importorskip("tensorboardX")
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    done = log("--to", "tensorboard", "--folder", "board")
    events = reader.EventAccumulator(str(here / "board"))
    events.Reload()

    assert 0 == done.exit_code, done.output
    read = {one.step: one.value for one in events.Scalars("dptrace/exposed_comm_ms")}
    assert read == pytest.approx(expected())
    assert {path.name for path in (here / "board").glob("*.html")} == PAGES


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore")
def test_mlflow_reads_the_metrics(here: Path) -> None:
    """In an experiment of a folder; again into the same run by its id."""
    mlflow = pytest.importorskip("mlflow")
    done = log("--to", "mlflow", "--project", "step-time", "--folder", "store", "--json")
    assert 0 == done.exit_code, done.output
    client = mlflow.MlflowClient((here / "store").as_uri())
    experiment = client.get_experiment_by_name("step-time").experiment_id
    (run,) = client.search_runs([experiment])

    read = {one.step: one.value for one in client.get_metric_history(run.info.run_id, "dptrace/exposed_comm_ms")}
    assert read == pytest.approx(expected())
    assert {Path(one.path).name for one in client.list_artifacts(run.info.run_id, "dptrace")} == PAGES
    assert run.data.params["mode"] == "ddp"
    again = log("--to", "mlflow", "--folder", "store", "--run-id", run.info.run_id, "--no-pages")
    assert 0 == again.exit_code, again.output
    assert 1 == len(client.search_runs([experiment]))


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("uri", "advice"),
    [("http://127.0.0.1:9", "server that runs?"), ("file:///store", "can't write to file:///store")],
)
def test_where_mlflow_can_not_write_a_folder_is_advised(
    here: Path, monkeypatch: pytest.MonkeyPatch, uri: str, advice: str
) -> None:
    """Without a server, and with a folder that was not asked for by --folder."""
    pytest.importorskip("mlflow").set_tracking_uri(uri)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.delenv("MLFLOW_ALLOW_FILE_STORE", raising=False)
    done = log("--to", "mlflow", "--no-pages")

    assert (1, True, True) == (done.exit_code, advice in done.output, "--folder" in done.output), done.output


@pytest.mark.heavy
@pytest.mark.spawn
@pytest.mark.filterwarnings("ignore")
def test_wandb_writes_the_metrics_offline(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an account or a network: read back from its own file."""
    pytest.importorskip("wandb")
    messages: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    done = log("--to", "wandb", "--folder", ".")
    assert 0 == done.exit_code, done.output
    (file,) = here.glob("wandb/offline-run-*/run-*.wandb")
    read, files = {}, set()
    for data in wandb_records(file.read_bytes()):
        record = messages.Record.FromString(data)
        row = {".".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item}
        if "dptrace/train_step" in row:
            read[row["dptrace/train_step"]] = row["dptrace/exposed_comm_ms"]
        for request in (record.artifact, record.request.log_artifact.artifact):
            files |= {entry.path for entry in request.manifest.contents}

    assert read == pytest.approx(expected())
    assert files == PAGES


def test_what_is_missing_is_named_with_its_command(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what a tracker does not have is refused."""
    for tracker, module in (("wandb", "wandb"), ("mlflow", "mlflow"), ("tensorboard", "tensorboardX")):
        monkeypatch.setitem(sys.modules, module, None)
        done = log("--to", tracker, "--no-pages")
        assert 1 == done.exit_code
        assert "Install it with: pip install '" in done.output
        assert not list(here.iterdir())
        assert 2 == log("--to", "tensorboard", "--project", "x").exit_code
