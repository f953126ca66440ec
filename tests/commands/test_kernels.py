"""``dptrace kernels`` as a user runs it."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import dptrace
from dptrace.commands.shared.main import cli
from dptrace.errors import DptraceError, UsageError
from tests.support.compute_files import ComputeFile, inputs
from tests.support.layered_files import layered_file
from tests.support.recordings import dptrace as record

LONG = "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, A>(int)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    for rank in (0, 1):
        file = layered_file(rank, 2).kernel(LONG, 500, 501, None, stream=99)
        file.write(folder / f"rank{rank}.json")
    return folder


def run(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "140"}).invoke(cli, ["kernels", *map(str, arguments)])


def rows_of(*arguments: object) -> list[dict[str, Any]]:
    result = run(*arguments, "--json")
    assert 0 == result.exit_code, result.output
    rows: list[dict[str, Any]] = json.loads(result.stdout)["rows"]
    return rows


@pytest.mark.heavy
def test_kernels_are_listed_with_short_names(folder: Path) -> None:
    """Most time first; full names on request."""
    result = run(folder)

    assert 0 == result.exit_code
    assert "vectorized_elementwise_kernel(FillFunctor<float>)" in result.stdout
    assert result.stdout.index("gemm_kernel") < result.stdout.index("relu_kernel")
    assert "at::native::FillFunctor" in run(folder, "--full-names").stdout


def test_rows_of_one_name_are_told_apart_on_a_narrow_terminal(folder: Path) -> None:
    """Other columns leave before those that say which operator it is."""
    result = CliRunner(env={"COLUMNS": "110"}).invoke(cli, ["kernels", str(folder), "--by", "operator"])
    left = result.stdout.partition("Left out at")[2]

    assert "% of compute" in left
    assert "outermost" not in left
    assert "phase" not in left


def test_json_and_csv_have_the_rows_and_what_they_add_up_to(folder: Path) -> None:
    """Times in ns; FLOPs are null without a formula or shapes; in CSV, lists are JSON in one field."""
    content = json.loads(run(folder, "--json").stdout)
    shapes = rows_of(folder, "--by", "operator-shape")
    lines = list(csv.DictReader(io.StringIO(run(folder, "--by", "operator-shape", "--csv").stdout)))

    assert ("kernel", "all", [0, 1]) == tuple(content[name] for name in ("by", "kind", "ranks"))
    assert content["totals"]["compute"]["total_ns"] == sum(row["compute_ns"] for row in content["rows"])
    assert LONG in [row["name"] for row in content["rows"]]
    flops = {row["operator"]: row["flops"] for row in shapes}
    assert (65_536, None) == (flops["aten::mm"], flops["aten::relu"])
    assert len(shapes) == len(lines)
    assert "[[64, 32], [32, 16]]" in [line["input_dims"] for line in lines]


@pytest.mark.heavy
def test_rows_are_chosen_and_sorted(folder: Path) -> None:
    """By a pattern, an order, a number, a rank, a kind and a step."""
    assert ["sgd_kernel"] == [row["kernel"] for row in rows_of(folder, "--match", "^SGD")]
    assert 4 == max(row["count"] for row in rows_of(folder, "--steps", "1"))
    counts = [row["count"] for row in rows_of(folder, "--sort", "count", "--top", "2")]
    assert 2 == len(counts)
    assert counts == sorted(counts, reverse=True)
    assert {0, 1} == {row["rank"] for row in rows_of(folder, "--per-rank")}
    assert {"communication"} == {row["kind"] for row in rows_of(folder, "--kind", "communication")}
    assert [0] == json.loads(run(folder, "--ranks", "0", "--json").stdout)["ranks"]


@pytest.mark.heavy
def test_python_returns_the_same_rows(folder: Path, tmp_path: Path) -> None:
    """As a frame; a wrong grouping or kind is refused, and so are operators of files that are gone."""
    run_ = dptrace.open(str(folder), cache=False)
    frame = run_.kernel_summary(by="operator")

    assert [row["total_ns"] for row in rows_of(folder, "--by", "operator")] == frame["total_ns"].tolist()
    for wrong in ({"by": "color"}, {"kind": "color"}):
        with pytest.raises(UsageError):
            run_.kernel_summary(**wrong)  # type: ignore[arg-type]
    gone = shutil.copytree(folder, tmp_path / "gone")
    again = dptrace.open(str(gone), cache=False)
    for path in gone.glob("*.json"):
        path.unlink()
    assert len(again.kernel_summary()) > 3
    with pytest.raises(DptraceError, match="second reading"):
        again.kernel_summary(by="operator")


def test_the_host_is_listed_too(folder: Path) -> None:
    """Its calls, and for each device how far it runs ahead."""
    content = json.loads(run(folder, "--by", "host", "--json").stdout)

    assert [0, 1] == [one["rank"] for one in content["launch"]]
    assert 28 == {row["call"]: row["launches"] for row in content["rows"]}["cudaLaunchKernel"]
    assert "aten::mm" in run(folder, "--by", "host").stdout
    assert len(content["rows"]) == len(dptrace.open(str(folder)).launches())


@pytest.mark.spawn
@pytest.mark.slow
def test_recorded_modules_become_layers(tmp_path: Path) -> None:
    """Of a trainer: each layer has forward, backward and the collectives that its gradients completed."""
    options = "--mode naive --model small --gpus 2 --steps 2 --modules -o run"
    record("record", *options.split(), cwd=tmp_path)
    rows = {row["layer"]: row for row in rows_of(tmp_path / "run", "--by", "layer")}
    layers = [row for name, row in rows.items() if not name.startswith("(") and row["forward_ns"]]

    assert len(layers) >= 2
    assert all(row["backward_ns"] for row in layers)
    assert any(row["communication_ns"] for row in rows.values())


@pytest.mark.heavy
def test_findings_stand_above_the_table(tmp_path: Path) -> None:
    """And in the JSON; not where they are not asked for, and never in CSV."""
    # The kernel ends after its step does on the host, so that the step is shorter without the copy before it.
    file = ComputeFile().step().copy("Memcpy HtoD (Pageable -> Device)", 200).kernel("aten::mm", "gemm", 900)
    file.file.write(tmp_path / "rank0.json")
    printed = run(tmp_path).stdout
    (found,) = json.loads(run(tmp_path, "--json").stdout)["findings"]

    assert ("pageable_copies", 200_000) == (found["kind"], found["counted_ns"])
    assert printed.index("pin_memory") < printed.index("gemm")
    assert "pin_memory" not in run(tmp_path, "--no-findings").stdout
    assert "findings" not in json.loads(run(tmp_path, "--no-findings", "--json").stdout)
    assert "pin_memory" not in run(tmp_path, "--csv").stdout


def test_findings_say_what_a_step_would_gain(tmp_path: Path) -> None:
    """With its share of a step."""
    file = ComputeFile()
    for _ in range(3):
        file.step()
        for length in (10, 20, 30):
            file.kernel("aten::add", "vectorized_add", length, **inputs([1024, 1024], [1024, 1024]))
    path = file.file.write(tmp_path / "rank0.json")
    (found,) = json.loads(run(path, "--json").stdout)["findings"]

    assert found["gain_next_ns"] == found["gain_ns"] < found["counted_ns"]
    assert 0 <= found["gain_share"] < 1
