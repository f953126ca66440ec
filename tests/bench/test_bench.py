"""Benchmarks: the matrix, the folder, the results of user scripts, the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dptrace.bench.execute import BenchRunError, Settings, jobs, parse_results, results, run_all, run_timed
from dptrace.bench.recorded import RecordedFigures
from dptrace.bench.store import BenchConfig, Store, matrix
from dptrace.bench.table import Row, frame, rows, rows_from_csv
from dptrace.commands.shared.output import csv_text
from dptrace.errors import DptraceError, UsageError
from dptrace.record.options.modes import MLPS
from tests.support.forking import fork_commands

FOUR = ("single", "naive", "interleaved", "ddp")


def test_a_matrix_has_what_the_machine_can_run() -> None:
    """Four models on one GPU, and in three modes on two and four; two GPUs leave four out, and say it."""
    cells, left_out = matrix(MLPS, FOUR, [1, 2, 4], 4)
    fewer, missing = matrix(["small"], FOUR, [1, 2, 4], 2)

    assert 28 == len(cells) == len(set(cells)) == len({config.name for config in cells})
    assert ([], BenchConfig("small", "single", 1)) == (left_out, cells[0])
    assert [1, 2, 2, 2] == [config.gpus for config in fewer]
    assert ["4 GPUs: this machine has 2."] == missing


@pytest.mark.parametrize(
    ("modes", "counts", "batch", "says"),
    [
        (["naive"], [1], None, "nothing to run"),
        (["naive"], [8], None, "this machine has 2"),
        (["naive"], [2], 3, "2 or 4"),
    ],
)
def test_a_matrix_of_nothing_is_refused(modes: list[str], counts: list[int], batch: int | None, says: str) -> None:
    """Invalid requests fail before anything runs."""
    with pytest.raises(UsageError, match=says):
        matrix(["small"], modes, counts, 2, batch)


def test_a_folder_is_not_overwritten_and_goes_on_only_with_the_same_plan(tmp_path: Path) -> None:
    """It needs --resume or --force; --resume with another plan names the difference."""
    store = Store(tmp_path / "bench")
    store.begin({"epochs": 5, "cells": ("a",)}, False, False)
    store.save("a.0", {"epoch_s": [1.0]})

    with pytest.raises(UsageError, match="--resume"):
        store.begin({"epochs": 5, "cells": ("a",)}, False, False)
    with pytest.raises(UsageError, match="epochs: 5 then, 1 now"):
        store.begin({"epochs": 1, "cells": ("a",)}, True, False)
    store.begin({"epochs": 5, "cells": ("a",)}, True, False)
    assert {"epoch_s": [1.0]} == store.result("a.0")
    assert {"schema": 1, "plan": {"epochs": 5, "cells": ["a"]}} == json.loads((store.folder / "bench.json").read_text())
    store.begin({"epochs": 1, "cells": ("a",)}, False, True)
    assert store.result("a.0") is None


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    """A benchmark file that cannot be read is an error, and is not replaced."""
    (tmp_path / "thesis.txt").write_text("mine")
    with pytest.raises(UsageError, match="contains other files"):
        Store(tmp_path).begin({}, False, False)
    with pytest.raises(UsageError, match="no benchmark to resume"):
        Store(tmp_path / "new").begin({}, True, False)
    (tmp_path / "bench.json").write_text("{")
    with pytest.raises(DptraceError, match="not valid JSON"):
        Store(tmp_path).begin({}, True, False)


@pytest.mark.parametrize(
    ("printed", "says"),
    [
        ("nothing here", "no line that begins with RESULTS_JSON:"),
        ("RESULTS_JSON: {", "not valid JSON"),
        ("RESULTS_JSON: [1]", "not a JSON object"),
        ('RESULTS_JSON: {"mode": "x"}', "without epoch times"),
        ('RESULTS_JSON: {"epoch_s": []}', "without epoch times"),
        ('RESULTS_JSON: {"epoch_s": ["1"]}', "without epoch times"),
        ('RESULTS_JSON: {"avg_epoch_s": -1}', "without epoch times"),
        ('RESULTS_JSON: {"epoch_s": [Infinity]}', "without epoch times"),
        ('RESULTS_JSON: {"epoch_s": 1, "parameters": "many"}', "is not a number"),
        ('RESULTS_JSON: {"epoch_s": 1, "samples_per_s": NaN}', "is not a number"),
        ('RESULTS_JSON: {"epoch_s": 1, "losses": [1, "x"]}', "a value that is not a number"),
    ],
)
def test_results_that_are_none_are_reported(printed: str, says: str) -> None:
    """The message is the reason that the run's row shows."""
    with pytest.raises(BenchRunError, match=says):
        parse_results(printed)


def test_the_last_line_of_results_counts() -> None:
    """Scripts may print other lines before it; a single number is one epoch."""
    printed = 'hello\nRESULTS_JSON: {"avg_epoch_s": 1}\nRESULTS_JSON: {"avg_epoch_s": 2.5}\nbye'

    assert [2.5] == parse_results(printed)["epoch_s"]
    assert [0.5, 1.5] == parse_results('RESULTS_JSON: {"epoch_s": [0.5, 1.5]}')["epoch_s"]


def result(seconds: list[float], **more: Any) -> dict[str, Any]:
    return {"epoch_s": seconds, "steps_per_epoch": 10, "samples_per_s": 1000.0, "parameters": 7, **more}


def test_the_table_compares_with_one_gpu() -> None:
    """Medians over repetitions; speedup, efficiency, communication of an epoch, Amdahl's ceiling, Gustafson's; the
    recorded step gives the FLOPs, but not the time of the rate."""
    one, two = BenchConfig("small", "single", 1), BenchConfig("small", "naive", 2)
    split = RecordedFigures(0.05, 0.05, 0.0, wall_s=0.125, collectives=1, bytes=4, tflop=0.5, mfu_s=0.01)
    found = {one: [result([1.0, 3.0]), result([2.0, 2.0])], two: [result([1.0])]}
    single, naive = rows([one, two], found, {two: split})

    assert (2.0, 4, 1.0) == (single.epoch_s, single.epochs, single.speedup)
    assert (2.0, 1.0, 0.5) == (naive.speedup, naive.efficiency, naive.comm_s)
    assert pytest.approx((2.0 / 2.5, 1 / (0.2 + 0.4), 0.8)) == (naive.parallel_fraction, naive.ceiling, naive.gustafson)
    assert (5.0, 0.1) == (naive.tflops, naive.mfu)


def test_a_run_that_failed_is_a_row_that_says_why() -> None:
    """Other rows keep their figures; one successful repetition is enough. A script names its own mode, dptrace's
    trainers cannot; rows with other options have another baseline."""
    a, b, c = BenchConfig("small", "single", 1), BenchConfig("small", "ddp", 2), BenchConfig("small", "naive", 2)
    script, other = BenchConfig("mine", "script", 2), BenchConfig("small", "ddp", 2, (("batch-size", "16"),))
    found = {a: [result([1.0])], b: [{"failed": "out of memory"}], c: [{"failed": "x"}, result([1.0], mode="zero")]}
    found |= {script: [result([1.0], mode="zero", accuracy=[0.1, 0.9])], other: [result([1.0], accuracy=0.5)]}
    made = rows([a, b, c, script, other], found, {})

    assert [None, "out of memory", None, None, None] == [row.failed for row in made]
    assert [1.0, None, 1.0, None, None] == [row.speedup for row in made]
    assert ["single", "ddp", "naive", "zero", "ddp"] == [row.mode for row in made]
    assert [0.9, 0.5] == [row.accuracy for row in made[3:]]
    assert "out of memory" in frame(made).to_csv()
    assert "16" == frame(made)["batch-size"].tolist()[-1]


def test_a_csv_gives_the_same_rows(tmp_path: Path) -> None:
    """Speedups are recomputed; rows of one cell are repetitions, with median and spread, not two baselines."""
    path = tmp_path / "runs.csv"
    path.write_text(
        "model,mode,gpus,params_millions,avg_epoch_s,comm_s,samples_per_s,speedup\n"
        "xlarge,single,1,52.0,0.5956,,55016,1.00\nxlarge,naive,4,52.0,0.2898,0.0940,113077,9.99\n"
        "a,single,1,1,1,,,\na,single,1,1,3,,,\na,ddp,2,1,1,,,\n"
    )
    single, naive, twice, ddp = rows_from_csv(path)

    assert (52_000_000, None) == (single.parameters, single.comm_s)
    assert pytest.approx((2.055, 0.8637), abs=0.001) == (naive.speedup, naive.parallel_fraction)
    assert (2.0, 2, 0.25, 2.0) == (twice.epoch_s, twice.epochs, twice.spread, ddp.speedup)


def test_what_dptrace_wrote_is_read_again(tmp_path: Path) -> None:
    """table.csv of a benchmark can be read again, with its failed rows."""
    made = [Row("=small", "single", 1, 7, 1.0, 0.1, 5, samples_per_s=3.0), Row("=small", "ddp", 2, failed="-broke")]
    path = tmp_path / "table.csv"
    path.write_text(csv_text(frame(made)))
    again = rows_from_csv(path)

    assert ("-broke", 1.0, 7) == (again[1].failed, again[0].epoch_s, again[0].parameters)
    assert "=small" == again[0].model
    assert 2 == path.read_text().count("\n'=small,")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "can't be read"),
        ("a,b\n1,2\n", "missing column model, mode, gpus"),
        ("model,mode,gpus,avg_epoch_s\n", "no rows"),
        ("model,mode,gpus,avg_epoch_s\nx,naive,two,1\n", "two"),
        ("model,mode,gpus,avg_epoch_s\nx,naive,2,\n", "lacks"),
        ("model,mode,gpus,avg_epoch_s\nx,ddp,0,1\n", "a row for x, ddp has 0 GPUs"),
        ("model,mode,gpus,avg_epoch_s\nx,ddp,1.5,1\n", "a row for x, ddp has 1.5 GPUs"),
    ],
)
def test_a_csv_of_something_else_is_reported(tmp_path: Path, text: str, says: str) -> None:
    """The message says what is missing."""
    path = tmp_path / "other.csv"
    path.write_text(text)
    with pytest.raises(DptraceError, match=says):
        rows_from_csv(path)


def test_a_benchmark_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs with a result are skipped, failed and damaged ones repeated; each is stored before the next run."""
    from dptrace.bench import execute

    a, b, c = BenchConfig("small", "single", 1), BenchConfig("small", "ddp", 2), BenchConfig("small", "naive", 2)
    store = Store(tmp_path)
    store.begin({}, False, False)
    store.save("small_single_1.0", result([1.0]))
    store.save("small_ddp_2.0", {"failed": "once"})
    store.path("small_naive_2.0").write_text("{")
    with pytest.raises(DptraceError, match="not valid JSON"):
        store.result("small_naive_2.0")

    monkeypatch.setattr(execute, "run_timed", lambda config, settings: result([3.0]))
    shown: list[tuple[str, bool]] = []
    run_all(jobs([a, b, c], 1, profile=False), Settings(), store, lambda job, done: shown.append((job.name, done)))

    again = [(f"small_{name}_2.0", done) for name in ("ddp", "naive") for done in (False, True)]
    assert [("small_single_1.0", True), *again] == shown
    assert [3.0] == results([a, b], 1, store)[b][0]["epoch_s"]


@pytest.mark.slow
@pytest.mark.spawn
def test_a_strangers_script_is_benched_and_its_failure_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any script that prints the line works; a crash reports the script's own error, and a hang is stopped."""
    script = tmp_path / "mine.py"
    script.write_text(
        "import os, sys, time\n"
        "if sys.argv[1] == 'die': raise KeyError('weights')\n"
        "if sys.argv[1] == 'hang': time.sleep(600)\n"
        "size = os.environ['WORLD_SIZE']\n"
        "if os.environ['RANK'] == '0': print('RESULTS_JSON: {\"epoch_s\": [0.25], \"ranks\": ' + size + '}')\n"
    )
    pytest.importorskip("torch")
    fork_commands(monkeypatch)
    config = BenchConfig("mine", "script", 2)

    good = run_timed(config, Settings(script=str(script), arguments=("go",)))
    assert ([0.25], 2) == (good["epoch_s"], good["ranks"])
    with pytest.raises(BenchRunError, match=r"^KeyError: 'weights'$"):  # not torchrun's report, which follows
        run_timed(config, Settings(script=str(script), arguments=("die",)))
    with pytest.raises(BenchRunError, match="longer than 4 s"):
        run_timed(config, Settings(script=str(script), arguments=("hang",), timeout_s=4))
