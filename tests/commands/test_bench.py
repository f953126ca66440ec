"""``dptrace bench``: what is refused, what is written, and real processes, broken off and gone on with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from dptrace.bench.table import BenchResult, machine_info
from dptrace.commands.bench import write
from dptrace.commands.shared.main import cli
from dptrace.errors import UsageError
from dptrace.viewers.benchmarks.bench_table import draw_charts
from tests.support.bench_tables import CSV, WORKSHOP, with_losses
from tests.support.forking import SAMPLES, start_python
from tests.support.pictures import png_test
from tests.support.recordings import dptrace, environment


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A current folder with the workshop's table in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("COLUMNS", "140")
    (tmp_path / "runs.csv").write_text(CSV)
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["bench", *arguments])


def test_wrong_use_is_refused_in_a_line(here: Path) -> None:
    """Before anything is started or written."""
    pytest.importorskip("torch")
    for arguments, says in (
        (["--models", "huge"], "--models huge: unknown; choose from small"),
        (["--modes", "fast"], "--modes fast"),
        (["--models", ","], "--models: the list is empty"),
        (["--gpus", "0"], "for example 1,2,4"),
        (["--gpus", "two"], "for example 1,2,4"),
        (["--modes", "naive", "--gpus", "1"], "nothing to run"),
        (["--gpus", "2", "train.py"], "name it with --script"),
        (["--script", "nowhere.py"], "--script nowhere.py: no such file"),
        (["--script", "runs.csv", "--models", "small"], "a script's own follow --"),
        (["--script", "runs.csv", "--epochs", "3"], "follow --, as in --script runs.csv -- --epochs 3"),
        (["--resume"], "no benchmark to resume"),
        (["--from", "runs.csv", "--epochs", "3"], "leave --epochs out"),
        (["--from", "nowhere.csv"], "nowhere.csv: no such file"),
        (["--from", "runs.csv", "-o", "runs.csv"], "is not empty"),
        (["--modes", "moe", "--models", "small"], "the mode moe trains gpt-tiny"),
        (["--csv", "runs.csv"], "runs.csv already exists"),
    ):
        done = run(*arguments)

        assert done.exit_code in (1, 2), (arguments, says)
        assert says in done.output, (arguments, says)
        assert "Traceback" not in done.output, (arguments, says)
        assert ["runs.csv"] == os.listdir(here), (arguments, says)


@pytest.mark.heavy
def test_figures_from_elsewhere_are_drawn(here: Path) -> None:
    """The workshop's table gives the page, five charts, the table in three forms, and their sentences; its CSV gives it
    again; only --force overwrites it, and nothing a benchmark that was run here."""
    done = run("--from", "runs.csv", "-o", "made")

    assert 0 == done.exit_code, done.output
    assert ["bench.json", "charts", "charts.html", "table.csv", "table.md"] == sorted(os.listdir(here / "made"))
    charts = {"communication.svg", "epoch_time.svg", "saving.svg", "speedup.svg", "throughput.svg"}
    assert charts == set(os.listdir(here / "made" / "charts"))
    assert "DDP pays off from 8.4 M parameters up" in done.output
    assert "small, DDP on 2 GPUs: 0.83×" in done.output
    assert "Next: open made/charts.html" in done.output
    content = json.loads((here / "made" / "bench.json").read_text())
    assert (1, "runs.csv", 28) == (content["schema"], content["source"], len(content["rows"]))
    assert "no losses" in content["reading"]["loss"][0]

    (here / "again.csv").write_text(run("--from", "runs.csv", "-o", "made", "--force", "--csv", "-", "-q").stdout)
    again = json.loads(run("--from", "again.csv", "-o", "b", "--json", "-q").stdout)
    assert 2.4 == round(again["rows"][-2]["speedup"], 1)
    assert "--force overwrites it" in run("--from", "runs.csv", "-o", "made").output
    (here / "made" / "bench.json").write_text('{"schema": 1, "plan": {}}')
    assert "a benchmark that was run here" in run("--from", "runs.csv", "-o", "made", "--force").output


@pytest.mark.heavy
@png_test
def test_charts_as_png(here: Path) -> None:
    """Beside each SVG, of its shape."""
    (here / "few.csv").write_text("model,mode,gpus,avg_epoch_s\na,single,1,1\na,ddp,2,0.6\n")
    done = run("--from", "few.csv", "-o", "made", "--png")

    assert 0 == done.exit_code, done.output
    assert ["epoch_time.png", "epoch_time.svg", "speedup.png", "speedup.svg"] == sorted(
        os.listdir(here / "made" / "charts")
    )
    assert (here / "made" / "charts" / "speedup.png").read_bytes().startswith(b"\x89PNG")


def test_png_without_what_draws_it_is_refused_before_any_run(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to install."""
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    done = run("--from", "runs.csv", "--png")

    assert 1 == done.exit_code
    assert "pip install" in done.output
    assert ["runs.csv"] == os.listdir(here)


def test_numbers_of_gpus_are_powers_of_two_by_default() -> None:
    """As many as there are; an order and repetitions do not matter."""
    from dptrace.commands.bench import parse_gpu_counts

    assert [1, 2, 4, 8] == parse_gpu_counts(None, 8)
    assert [1, 2, 4] == parse_gpu_counts(None, 6)
    assert [1, 2] == parse_gpu_counts("2,1,2", 8)
    with pytest.raises(UsageError, match="for example 1,2,4"):
        parse_gpu_counts("-2", 8)


_SMALL = ("--models", "small", "--modes", "single,naive,ddp", "--gpus", "2", "--epochs", "1", "--batch-size", "1024")


def started(folder: Path, *more: str) -> subprocess.Popen[str]:
    words = ["-m", "dptrace", "bench", *_SMALL, "--steps", "2", *more]
    pipe = subprocess.PIPE
    return start_python(*words, cwd=folder, env=environment(), stdout=pipe, stderr=pipe, text=True)


@pytest.mark.slow
@pytest.mark.spawn
def test_a_benchmark_that_is_broken_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM in the second of three runs: the first stays as it was, --resume runs the others, and all are rows."""
    pytest.importorskip("torch")
    monkeypatch.setenv(SAMPLES, "2048")
    first = started(tmp_path, "--no-record")
    results = tmp_path / "bench" / "results"
    until = time.monotonic() + 120
    while not list(results.glob("*.0.json")) and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(0.5)
    first.send_signal(signal.SIGTERM)
    _, errors = first.communicate(timeout=120)
    assert 143 == first.returncode, errors
    assert "Add --resume" in errors
    kept = (results / "small_single_1.0.json").read_bytes()
    assert not (tmp_path / "bench" / "table.csv").exists()

    again = dptrace("bench", *_SMALL, "--steps", "2", "--no-record", "--resume", cwd=tmp_path)
    shown, errors = again.stdout, again.stderr
    assert kept == (results / "small_single_1.0.json").read_bytes()
    content = json.loads((tmp_path / "bench" / "bench.json").read_text())
    assert [("single", 1), ("naive", 2), ("ddp", 2)] == [(row["mode"], row["gpus"]) for row in content["rows"]]
    assert {1_462_538} == {row["parameters"] for row in content["rows"]}
    assert all(row["failed"] is None and row["epoch_s"] > 0 for row in content["rows"])
    assert content["reading"]["loss"][0].startswith("small: all 3 curves coincide")
    assert "share its cores" in errors
    assert "charts.html" in errors
    assert "small" in shown

    same = dptrace("bench", *_SMALL, "--steps", "2", "--no-record", "--resume", cwd=tmp_path)
    assert shown == same.stdout


# What a benchmark leaves in its folder.


@pytest.mark.heavy
def test_every_file_is_listed_and_there_and_stale_pictures_go(tmp_path: Path) -> None:
    """bench.json keeps the plan, and gets rows, machine and sentences; no picture of other figures stays."""
    result = BenchResult(
        with_losses(WORKSHOP), "Benchmark", ["a note"], {"devices": ["A100"]}, plan={"plan": {"epochs": 5}}
    )
    written = write(tmp_path, result, draw_charts(result), {"loss": ["x"]}, png=False)

    assert ["charts.html", "charts/ (6 pictures)", "table.csv", "table.md", "bench.json"] == written
    content = json.loads((tmp_path / "bench.json").read_text())
    assert ({"epochs": 5}, {"devices": ["A100"]}, ["a note"]) == (content["plan"], content["machine"], content["notes"])
    assert (8, {"loss": ["x"]}) == (len(content["rows"][0]["losses"]), content["reading"])
    assert "84 % of Amdahl's ceiling" in (tmp_path / "table.md").read_text()
    page = (tmp_path / "charts.html").read_text()
    assert "<span>28 rows</span><span>A100</span>" in page
    assert "a note" in page
    assert (tmp_path / "charts" / "loss.svg").exists()

    bare = replace(result, rows=WORKSHOP)
    write(tmp_path, bare, draw_charts(bare), {}, png=False)
    assert not (tmp_path / "charts" / "loss.svg").exists()


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("epochs", "spread", "said", "not_said"),
    [(1, 0.0, "no verdict", "saves time"), (5, 0.01, "never saves time", "no verdict")],
)
def test_one_verdict_stands_everywhere(here: Path, epochs: int, spread: float, said: str, not_said: str) -> None:
    """In the first and the fourth chart, in the text, the JSON, the page and the table of a table that was recorded."""
    rows = [("single", 1, 1.0), ("naive", 2, 1.1), ("ddp", 2, 1.22)]
    lines = [f"a,{mode},{gpus},{seconds},{epochs},{spread}" for mode, gpus, seconds in rows]
    (here / "own.csv").write_text("\n".join(["model,mode,gpus,epoch_s,epochs,spread", *lines]))
    done = run("--from", "own.csv", "-o", "made", "--json")
    told = run("--from", "own.csv", "-o", "made", "--force").stdout
    reading = json.loads(done.stdout)["reading"]

    assert reading == json.loads((here / "made" / "bench.json").read_text())["reading"]
    assert ("no verdict" in reading["epoch_time"][0]) == ("no verdict" in reading["saving"][0]) == (epochs == 1)
    assert said in reading["saving"][0]
    assert reading["epoch_time"][0] in told
    for name in ("table.md", "charts.html"):
        text = (here / "made" / name).read_text()
        assert all(reading[chart][0] in text for chart in ("epoch_time", "saving"))
        assert not_said not in text


def test_the_machine_is_what_the_runs_say() -> None:
    """All kinds of devices, and the versions of one run; nothing of runs that failed or told nothing."""
    runs: list[dict[str, Any]] = [
        {"device": "A100", "versions": {"torch": "2.13"}},
        {"device": "H100"},
        {"failed": "x", "device": "B"},
        {},
    ]

    assert {"devices": ["A100", "H100"], "versions": {"torch": "2.13"}} == machine_info({"cell": runs})
    assert {"devices": [], "versions": {}} == machine_info({})
