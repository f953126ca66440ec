"""Runs over time: a planted change is found at its run, and none where there is none."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import dptrace
from dptrace.commands.shared.main import cli
from dptrace.comparison.history import ALPHA, MIN_RUNS, change_points
from dptrace.errors import UsageError
from tests.support.jobs import job
from tests.support.kineto_files import BASE_NS, KinetoFile
from tests.support.paths import TRACES


def nightly(count: int, slower_from: int | None = None, seed: int = 0, noise: float = 0.01) -> list[Any]:
    """Make a run a day, whose backward takes a tenth longer from one day on, with another torch."""
    runs: list[Any] = []
    for day in range(count):
        new = slower_from is not None and day >= slower_from
        metadata: dict[str, Any] = {
            "created": f"2026-11-{day + 1:02d}T03:00:00+00:00",
            "versions": {"torch": f"2.{8 + new}"},
        }
        factors = {"backward": 1.1} if new else {}
        path = f"runs/n{day:02d}"
        runs.append(job(4, 2, 1000 * seed + day, noise, factors, path=path, metadata=metadata))
    return runs


@pytest.mark.heavy
@pytest.mark.parametrize("at", [3, 11, 18, 27])
def test_a_planted_change_is_found_at_its_run_and_named(at: int) -> None:
    """In 30 runs, given in any order: what moved, by how much, and what changed in the setup."""
    runs = nightly(30, at)
    (series,) = dptrace.history(runs[::2] + runs[1::2]).series
    (change,) = series.changes

    assert [run.path for run in runs] == [row["run"] for row in series.rows]
    assert at == change.index
    assert ["wall_ns", "backward_ns"] == [shift.figure for shift in change.shifts]
    assert change.shifts[1].delta == pytest.approx(6e6, rel=0.05)
    assert ("Version of torch: before 2.8, from then on 2.9.",) == change.differs
    assert [(0, at - 1), (at, 29)] == [level[:2] for level in series.levels()]


@pytest.mark.slow
def test_no_change_is_found_in_equal_runs() -> None:
    """In none of ten histories of 30 runs; and of 200 series of numbers in about a hundredth, as stated."""
    assert [()] * 10 == [dptrace.history(nightly(30, seed=seed)).series[0].changes for seed in range(10)]
    draw = np.random.default_rng(0)
    found = sum(bool(change_points(100 + draw.standard_normal(30), ALPHA / 2)) for _ in range(200))
    assert found <= 7


@pytest.mark.heavy
def test_odd_runs_are_no_change_and_hide_none() -> None:
    """Two runs far off make no level, and two levels are found around them; two changes are found, too."""
    draw = np.random.default_rng(1)
    odd, both, twice = (100 + draw.standard_normal(30) for _ in range(3))
    odd[[4, 20]] += 50
    both[12:] += 8
    both[20] -= 60
    twice[10:] += 8
    twice[20:] -= 5

    assert {} == change_points(odd, ALPHA / 2)
    assert [12] == list(change_points(both, ALPHA / 2))
    assert [10, 20] == list(change_points(twice, ALPHA / 2))
    assert {} == change_points(np.repeat([1.0, 9.0], [MIN_RUNS // 2 - 1] * 2), ALPHA / 2)
    assert {} == change_points(np.full(20, 3.0))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a baseline for each of 30 days, and what is no run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nights" / "empty").mkdir(parents=True)
    for run in nightly(30, 18):
        dptrace.save_baseline(tmp_path / "nights" / f"{Path(run.path).name}.json", run)
    return tmp_path / "nights"


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["history", *map(str, arguments)])


@pytest.mark.heavy
def test_the_command_shows_the_change_in_every_form(folder: Path) -> None:
    """Text, JSON, CSV, Markdown and a page; what is no run is named."""
    text = invoke(folder)
    (series,) = json.loads(invoke(folder, "--json").stdout)["series"]
    page = folder.parent / "trend.html"

    assert 0 == text.exit_code, text.output
    assert "instead of 109 ms (+5." in text.stdout
    assert ": backward +6." in text.stdout
    assert "From n18: n18 (2026-11-19 03:00) on, a step takes 1" in text.stdout
    assert "Left out:" in text.stderr
    assert "empty" in text.stderr
    assert [18] == [change["index"] for change in series["changes"]]
    assert 31 == len(invoke(folder, "--csv").stdout.splitlines())
    assert 0 == invoke(folder, "-o", page).exit_code
    assert "instead of 109 ms" in page.read_text(encoding="utf-8")
    assert 0 == invoke(folder, "-o", "trend.md").exit_code
    assert "| n18: n18 ◀ |" in page.with_suffix(".md").read_text(encoding="utf-8")


def test_names_of_runs_are_escaped_and_a_folder_without_runs_is_refused(tmp_path: Path) -> None:
    """On the page, whatever a script is called."""
    from dptrace.viewers.pages.history import document

    hostile = "<script>alert(1)</script>\x1b[31m"
    page = document(dptrace.history([job(path=hostile, metadata={"script": hostile, "created": hostile})]))

    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert 1 == invoke(tmp_path).exit_code
    assert "holds no run" in invoke(tmp_path).output
    day = [job(seed=n, path=str(n), metadata={"created": f"2026-11-19T0{n}:30:00+00:00"}) for n in (3, 4)]
    assert {"03:30", "04:30", "recorded on 2026-11-19, UTC"} <= {*re.findall("[^<>]+", document(dptrace.history(day)))}


def test_a_recording_counts_once_in_a_history_and_in_a_baseline(tmp_path: Path) -> None:
    """Given twice it is refused, by its path or its figures; in a folder, the copy is left out and named."""
    recordings = {name: job(seed=seed, path=name) for name, seed in (("main", 1), ("copy", 1), ("next", 2))}
    for name, recording in recordings.items():
        dptrace.save_baseline(tmp_path / f"{name}.json", recording)
    main, copy = tmp_path / "main.json", tmp_path / "copy.json"

    for line in (("history", main, copy), ("history", main, main), ("baseline", "save", "twice", copy, copy)):
        done = CliRunner().invoke(cli, [*map(str, line)])
        assert (2, True) == (done.exit_code, "a recording is given twice" in done.output), done.output
    with pytest.raises(UsageError, match="twice, also as main"):
        dptrace.save_baseline(tmp_path / "all.json", [recordings["main"], recordings["copy"]])
    listed = invoke(tmp_path, "--json")
    assert 2 == len(json.loads(listed.stdout)["series"][0]["runs"])
    assert "main: main: a copy of copy: copy" in listed.stderr


@pytest.mark.heavy
def test_a_run_folder_is_a_history_of_one(tmp_path: Path) -> None:
    """Its ``run.json`` is no run beside others."""
    (run,) = json.loads(invoke(TRACES / "ddp_cpu_2ranks", "--json").stdout)["series"][0]["runs"]
    assert run["run"].endswith("ddp_cpu_2ranks")


@pytest.mark.heavy
def test_traces_say_when_they_were_recorded(tmp_path: Path) -> None:
    """Files that were copied in another order keep the place of a change, and no file's time is told."""
    for day in range(12):
        file = KinetoFile(0, 1, base=False)
        file.head["baseTimeNanoseconds"] = BASE_NS + day * 86_400 * 10**9
        length = (100 + 7 * day % 12 / 5) * (1.08 if day >= 7 else 1.0)
        for step in range(3):
            start = length * step
            file.label(f"ProfilerStep#{step}", start, start + length)
            file.kernel("gemm", start + 1, start + 10 * length / 11, start)
        path = tmp_path / f"n{day:02d}"
        path.mkdir()
        file.write(path / "trace.json")
        written = 1_700_000_000 + 977 * ((5 * day) % 12)
        for changed in (path / "trace.json", path):
            os.utime(changed, (written, written))

    done = invoke(tmp_path, "--json")
    (series,) = json.loads(done.stdout)["series"]
    assert [f"n{day:02d}" for day in range(12)] == [Path(row["run"]).name for row in series["runs"]]
    assert {"trace"} == {row["recorded_by"] for row in series["runs"]}
    assert [7] == [change["index"] for change in series["changes"]]
    assert "written" not in invoke(tmp_path).output
    night = dptrace.open(tmp_path / "n03", cache=False)
    stored = dptrace.open_baseline(dptrace.save_baseline(tmp_path / "n03.json", night) and tmp_path / "n03.json")
    assert series["runs"][3]["recorded"] == dptrace.history(stored).series[0].rows[0]["recorded"]


@pytest.mark.heavy
def test_the_worst_run_is_first_in_every_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of jobs that differ, by the share of a step without compute; with who is waited for."""
    monkeypatch.chdir(tmp_path)
    names = ("ddp_cpu_2ranks", "naive_cpu_2ranks", "single_cpu")
    for name in names:
        shutil.copytree(TRACES / name, tmp_path / "fleet" / name)
    document = json.loads(invoke("fleet", "--json").stdout)
    rows = {Path(row["run"]).name: row for series in document["series"] for row in series["runs"]}
    page = tmp_path / "runs.html"

    assert ["naive_cpu_2ranks", "ddp_cpu_2ranks", "single_cpu"] == [Path(run).name for run in document["worst_first"]]
    assert [1] == rows[names[1]]["culprit"]["ranks"]
    assert rows[names[1]]["culprit"]["waited_ns"] > 0
    assert rows["single_cpu"]["culprit"] is None
    for name, row in rows.items():
        split = dptrace.open(tmp_path / "fleet" / name).steps()
        lost = split[["exposed_comm_ns", "exposed_memory_ns", "idle_ns"]].sum().sum()
        assert row["no_compute_share"] == pytest.approx(lost / split["wall_ns"].sum(), rel=0.2)
    text = invoke("fleet").stdout
    assert text.index("naive_cpu") < text.index("ddp_cpu") < text.index("single_cpu")
    assert 0 == invoke("fleet", "-o", page).exit_code
    assert page.read_text(encoding="utf-8").count("rank 1") >= 2
