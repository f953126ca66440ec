"""`dptrace sweep`: what is refused before any process is started, the files, going on, and one real sweep."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dptrace.bench import execute as bench_run
from dptrace.bench.execute import BenchRunError, Settings
from dptrace.bench.recorded import RecordedFigures
from dptrace.bench.store import BenchConfig
from dptrace.bench.sweep_points import BUCKET_CAP
from dptrace.commands import sweep as verb
from dptrace.commands.shared.main import cli
from tests.support.cifar10_files import write_binary
from tests.support.forking import SAMPLES
from tests.support.links_samples import report_text
from tests.support.recordings import dptrace
from tests.support.sweeps import read, result

FILES = ["sweep.json", "sweep.html", "step.svg", "exposed.svg", "loss.svg"]
FILES += ["table.md", "table.csv", "epochs.csv", "buckets.csv"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of a machine with two cores and no GPU."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "132")
    monkeypatch.setattr(verb, "local_device_count", lambda: (2, False))
    return tmp_path


@pytest.fixture
def ran(here: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Runs that end at once, and the names of those that were started."""
    names: list[str] = []

    def timed(config: BenchConfig, settings: Settings) -> dict[str, Any]:
        names.append(config.name)
        if dict(config.options).get(BUCKET_CAP) == "2":
            raise BenchRunError("out of memory")
        if settings.show_epoch is not None:
            settings.show_epoch(config, {"epoch": 1, "epochs": 1, "seconds": 3.0, "samples_per_s": 42.0, "loss": 2.5})
        latency = {"batch_size": 1, "p50_s": 0.002, "p95_s": 0.004, "samples_per_s": 500.0}
        inference = [latency | {"sample_p50_s": 0.002, "sample_p95_s": 0.004}] if settings.inference else []
        seconds = 0.2 if dict(config.options).get(BUCKET_CAP) == "1" else 0.1
        return result(seconds, validation_loss=[1.5], accuracy=[0.25], inference=inference)

    def profiled(config: BenchConfig, settings: Settings, out: Path) -> RecordedFigures:
        names.append(f"{config.name} recorded")
        return read(float(dict(config.options).get(BUCKET_CAP, 25)))

    monkeypatch.setattr(bench_run, "run_timed", timed)
    monkeypatch.setattr(bench_run, "run_profiled", profiled)
    return names


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["sweep", *arguments])


@pytest.mark.heavy
def test_what_can_not_be_swept_is_refused(here: Path, ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """In one line, before any process and any file."""
    (here / "links4.json").write_text(report_text(4))
    write_binary(here / "tiny")
    monkeypatch.setitem(sys.modules, "torchvision", None)
    (here / "foreign").mkdir()
    (here / "foreign" / "data_batch_1").write_bytes(b"cos\nsystem\n(S'touch made'\ntR.")
    for arguments, says in (
        ([], "Nothing to compare"),
        (["--bucket-cap-mb", "4"], "Nothing to compare"),
        (["--bucket-cap-mb", "0,4"], "not above 0"),
        (["--bucket-cap-mb", "4,x"], "--bucket-cap-mb x"),
        (["--bucket-cap-mb", " , "], "list is empty"),
        (["--batch-size", "1.5"], "--batch-size 1.5"),
        (["--compress", "none,zip"], "choose from none, fp16"),
        (["--micro-batches", "1,2"], "use --mode accumulate"),
        (["--mode", "accumulate", "--micro-batches", "1,3", "--batch-size", "64"], "--micro-batches 3"),
        (["--batch-size", "7,8"], "must be divisible by 2 ranks"),
        (["--bucket-cap-mb", "1,4", "--gpus", "3"], "this machine has only 2"),
        (["--bucket-cap-mb", "1,4", "--mode", "naive"], "is not one of"),
        (["--bucket-cap-mb", "1,4", "--data", "nowhere"], "nowhere: not a folder"),
        (["--bucket-cap-mb", "1,4", "--data", ".", "--model", "small"], "synthetic data"),
        (["--bucket-cap-mb", "1,4", "--links", "none.json"], "none.json: no such file"),
        (["--bucket-cap-mb", "1,4", "--links", "links4.json"], "among 4 ranks"),
        (["--bucket-cap-mb", "1,4", "--resume"], "no benchmark to resume"),
        (["--bucket-cap-mb", "1,4", "--data", "."], "no files of CIFAR-10"),
        (["--bucket-cap-mb", "1,4", "--data", "foreign"], "only torchvision reads it"),
        (["--bucket-cap-mb", "1,4", "--data", "tiny"], "more than the 20 to train on"),
        (["--bucket-cap-mb", "1,4", "--samples", "100"], "more than the 100 to train on"),
        (["--bucket-cap-mb", "1,4", "--inference", "1,x"], "--inference: "),
        (["--bucket-cap-mb", "1,4", "--inference", "0"], "not from 1 to 4,096"),
    ):
        done = run(*arguments)

        assert done.exit_code in (1, 2), arguments
        assert says in done.output, arguments
        assert ran == []
        assert not [name for name in ("sweep", "made") if (here / name).exists()], arguments


@pytest.mark.heavy
def test_the_folder_gets_everything(here: Path, ran: list[str]) -> None:
    """Table, sentences, charts, epochs, buckets; each value is recorded right before it is timed."""
    done = run("--bucket-cap-mb", "1,4")

    assert done.exit_code == 0, done.output
    assert [name.endswith("recorded") for name in ran] == [True, False, True, False]
    assert done.stderr.count("epoch 1 of 1: 3.00 s, 42 samples/s, s ") == 2
    assert all((here / "sweep" / name).stat().st_size for name in FILES)
    assert "4 MiB is best here: 50 % less time per step than 1 MiB" in done.stdout
    content = json.loads((here / "sweep" / "sweep.json").read_text())
    assert content["schema"] == 1
    assert content["swept"] == [BUCKET_CAP]
    with (here / "sweep" / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row[BUCKET_CAP] for row in rows] == ["1", "4"]
    assert float(rows[1]["step_p50_s"]) == pytest.approx(0.1)
    assert [row["inference_1_sample_p50_s"] for row in rows] == ["0.002", "0.002"]
    assert [(row["validation_loss"], row["accuracy"]) for row in rows] == [("1.5", "0.25")] * 2
    assert [(one["epoch"], one["validation_loss"]) for one in content["by_epoch"]] == [(1, 1.5)] * 2
    assert content["onset"]["order"] == ["1 MiB", "4 MiB"]
    assert "ms/image" in done.stdout
    with (here / "sweep" / "buckets.csv").open() as file:
        assert {row[BUCKET_CAP] for row in csv.DictReader(file)} == {"1", "4"}


@pytest.mark.heavy
def test_it_goes_on_where_it_was_and_a_failed_run_is_tried_again(here: Path, ran: list[str]) -> None:
    """Finished runs are not repeated; without --resume the folder stays unchanged. The exit code says where every
    run failed, and the folder still has the reason."""
    first = run("--bucket-cap-mb", "1,2", "--json", "-q")
    ran.clear()
    again = run("--bucket-cap-mb", "1,2", "--json", "-q", "--resume")
    failed = run("--bucket-cap-mb", "2", "--batch-size", "64,128", "-o", "failed")

    assert ran[0] == "resnet18_ddp_2_bucket-cap-mb=2"
    assert json.loads(first.stdout) == json.loads(again.stdout)
    assert [point["failed"] for point in json.loads(again.stdout)["points"]] == [None, "out of memory"]
    refused = run("--bucket-cap-mb", "1,2")
    assert (refused.exit_code, failed.exit_code) == (2, 1)
    assert "--resume" in refused.output
    assert "--resume needs the same" in run("--bucket-cap-mb", "1,4", "--resume").output
    assert "out of memory" in (here / "failed" / "table.md").read_text()


@pytest.mark.heavy
def test_a_measured_line_chooses(here: Path, ran: list[str]) -> None:
    """Its file is named in the sentence; quiet prints no epoch, and no inference is measured on demand."""
    (here / "links.json").write_text(report_text(2))
    more = ("--links", "links.json", "--no-checkpoints", "-q", "--json", "--inference", "none")
    done = run("--bucket-cap-mb", "1,4", *more)
    content = json.loads(done.stdout)

    assert "epoch 1" not in done.stderr
    assert "from links.json" in " ".join(content["reading"])
    assert [point["inference"] for point in content["points"]] == [[], []]
    assert not (here / "sweep" / "checkpoints").exists()


@pytest.mark.heavy
def test_force_begins_again_without_the_old_checkpoints(here: Path, ran: list[str]) -> None:
    """With --resume they stay: a run without a result continues from them."""
    run("--bucket-cap-mb", "1,4")
    old = here / "sweep" / "checkpoints" / "resnet18_ddp_2_bucket-cap-mb=1" / "step-00000005"
    old.mkdir(parents=True)
    (old / "rank00000.pt").touch()
    run("--bucket-cap-mb", "1,4", "--resume")
    kept = old.exists()
    run("--bucket-cap-mb", "1,4", "--force")

    assert (True, False) == (kept, old.exists())


@pytest.mark.slow
@pytest.mark.spawn
def test_two_caps_are_swept_on_two_processes(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small MLP: as many all-reduces as the model of buckets says; the parameters are kept."""
    pytest.importorskip("torch")
    monkeypatch.setenv(SAMPLES, "2048")
    small = ("--model", "small", "--batch-size", "1024", "--gpus", "2", "--steps", "2")
    done = dptrace("sweep", "--bucket-cap-mb", "0.5,4", *small, "-o", "caps", "--json", cwd=here)

    content = json.loads(done.stdout)
    for point in content["points"]:
        assert point["step_p50_s"] > 0
        # Nothing is predicted where the fit can't tell: two caps on busy cores need not give one that can.
        assert point["predicted_collectives"] in (None, point["collectives"])
        assert 0 < point["communication_fraction"] < 1
    assert [point["collectives"] for point in content["points"]] == [3, 1]
    assert (content["fit"]["unsure"] is None) == (content["points"][0]["predicted_collectives"] is not None)
    assert len(list((here / "caps" / "checkpoints").glob("*.npz"))) == 2
    assert len(list((here / "caps" / "checkpoints").glob("*/step-*/*"))) == 2
    assert done.stderr.count("epoch 1 of 1: ") == 2
