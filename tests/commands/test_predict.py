"""``dptrace predict``: tables, JSON, charts and the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dptrace.commands.predict import command
from dptrace.commands.shared.main import cli
from dptrace.commands.shared.output import json_text
from dptrace.model.link_report import link_report
from tests.support.links_samples import measured
from tests.support.paths import ROOT

SEVENTY = ("--params", "70B", "--gpus", "64", "--seq", "4096", "--batch", "512")


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(command, list(arguments), standalone_mode=False)
    assert code == (result.exit_code if result.exception is None else getattr(result.exception, "exit_code", 1))
    return str(result.exception) if result.exception is not None else result.output


def figures(*arguments: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(run(*arguments, "--json").partition("\n! ")[0])
    return content


def test_what_fits_and_what_is_fastest() -> None:
    """70 billion parameters on 64 H100s: sharded or split plans fit, replicated ones do not; the first is fastest."""
    content = figures(*SEVENTY)
    fitting = {row["strategy"] for row in content["candidates"] if row["fits"]}

    assert {"fsdp", "3d"} <= fitting
    assert not {"ddp", "zero1", "zero2"} & fitting
    assert content["step_s"] == min(row["step_s"] for row in content["candidates"] if row["fits"])
    assert 0.3 < content["mfu"] < 0.5
    assert pytest.approx(content["step_s"]) == (
        content["compute_s"] + content["bubble_s"] + content["optimizer_s"] + content["exposed_s"]
    )


def test_the_text_says_what_is_assumed() -> None:
    """Tables for the step, its communication, the plans and the scaling; what was searched and assumed beside them."""
    text = run(*SEVENTY)

    assert all(title in text for title in ("Plans, fastest that fits first", "Communication roofline"))
    assert "of the peak of 989 TFLOP/s" in text
    assert "layouts compared" in text


@pytest.mark.parametrize("strategy", ["ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp", "tp", "pp", "3d"])
def test_each_strategy(strategy: str) -> None:
    """Each is predicted, with its volume and its time by collective."""
    content = figures("--params", "7e9", "--layers", "32", "--hidden", "4096", "--gpus", "64", "--strategy", strategy)

    assert strategy == content["strategy"]
    assert all(one["total_s"] > 0 and one["sent_bytes"] > 0 for one in content["communication"])
    assert content["communication_s"] == pytest.approx(sum(one["total_s"] for one in content["communication"]))


def test_experts() -> None:
    """Expert parallelism sends tokens to experts and back."""
    content = figures("--layers", "32", "--hidden", "4096", "--experts", "8", "--gpus", "8", "--strategy", "ep")

    assert "all_to_all" in {one["kind"] for one in content["communication"]}


def test_an_assumed_share_of_the_peak() -> None:
    """--mfu is what computation reaches; the MFU of the step is below it."""
    content = figures("--params", "7e9", "--gpus", "8", "--strategy", "fsdp", "--mfu", "0.5")

    assert 0.5 == content["assumed_share_of_peak"]
    assert 0.3 < content["mfu"] < 0.5


@pytest.mark.heavy
def test_a_page_and_charts(tmp_path: Path) -> None:
    """-o writes a page, or a chart, by the suffix."""
    page, chart = tmp_path / "plan.html", tmp_path / "plan.svg"
    run(*SEVENTY, "-o", str(page), "-q")
    run(*SEVENTY, "-o", str(chart), "-q")

    assert "Predicted step" in page.read_text()
    assert "FSDP ×64" in chart.read_text()


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (("--params", "7e9", "--json", "-o", "plan.html"), "plan.html"),
        (("--params", "7e9", "--batch", "100", "--gpus", "64", "--strategy", "ddp"), "100"),
        (("--params", "7e9", "--precision", "fp8", "--gpu", "a100"), "fp8"),
        (("--params", "7e9", "--link", "5us:0GB/s"), "5us:0GB/s"),
        (("--params", "7e9", "--ep", "2"), "--experts"),
        (("--params", "7e9", "--strategy", "ep"), "--experts"),
        (("--params", "7e9", "--experts", "4", "--top-k", "5"), "--top-k 5"),
        (("--layers", "2", "--hidden", "100", "--heads", "7"), "--heads 7"),
    ],
)
def test_what_is_refused(
    arguments: tuple[str, ...], fact: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong use names what is wrong."""
    monkeypatch.chdir(tmp_path)

    assert fact in run(*arguments, code=2)


def test_a_recording_on_other_numbers_of_ranks() -> None:
    """Of two ranks of interleaved: the measured step lies between both bounds, and a mean rank's parts add up."""
    content = figures("traces/interleaved_cpu_2ranks")
    measured = next(row for row in content["scaling"] if row["gpus"] == 2)

    assert content["ideal_step_s"] <= content["step_s"] <= content["serial_step_s"] == measured["strong_serial_s"]
    assert pytest.approx(content["step_s"]) == content["compute_s"] + content["exposed_s"] + content["rest_s"]
    assert [1 << power for power in range(11)] == [row["gpus"] for row in content["scaling"]]
    assert "describes a training" in run("traces/interleaved_cpu_2ranks", "--gpus", "8", code=2)


def test_measured_links_replace_nominal_ones(tmp_path: Path) -> None:
    """A file of dptrace links on one machine is the link within nodes: slower than NVLink, it is exposed."""
    path = tmp_path / "links.json"
    path.write_text(json_text(link_report(measured())))
    base = ("--params", "7e9", "--gpus", "4", "--strategy", "ddp", "--batch", "4")
    nominal, own = figures(*base), figures(*base, "--links", str(path))

    assert "links.json (all-reduce)" == own["links"][0]["name"]
    assert nominal["links"][1] == own["links"][1]
    assert own["exposed_s"] > nominal["exposed_s"]
    assert not [line for line in own["assumptions"] if "within a node" in line]


def test_the_workshops_gradients() -> None:
    """GPU workshop: 52 million float32 gradients on four A100s over PCIe: 312 MB by ring, 624 MB from the leader."""
    content = figures(
        "--params", "52e6", "--precision", "fp32", "--gpus", "4", "--gpu", "a100-pcie", "--link", "pcie4",
        "--strategy", "ddp", "--batch", "4",
    )  # fmt: skip
    sent = {one["algorithm"]: one["sent_bytes"] for one in content["all_reduce"]["algorithms"]}

    assert (312e6, 624e6) == (sent["ring"], sent["naive"])
    assert 312_000_000 == content["communication"][0]["sent_bytes"]


def test_a_recordings_point_on_the_roofline() -> None:
    """Interleaved of two ranks: 6 FLOPs for each of 8.4 million parameters and 512 samples over 33.7 MB sent."""
    point = figures("traces/interleaved_cpu_2ranks")["roofline"]

    assert pytest.approx(6 * 8_432_138 * 512) == point["flops"]
    assert pytest.approx(4 * 8_432_138, rel=0.01) == point["sent_bytes"]
    assert pytest.approx(point["flops"] / point["sent_bytes"]) == point["ccr"]
    assert "compute-bound" == point["regime"]
    assert "Roofline: 768 FLOPs" in run("traces/interleaved_cpu_2ranks")


@pytest.mark.parametrize("gpus", ["1", "3", "6"])
def test_few_and_odd_numbers_of_gpus(gpus: str) -> None:
    """Strategies that can't divide them are left out."""
    assert figures("--params", "350e6", "--gpus", gpus)["fits"]


@pytest.mark.heavy
def test_a_recordings_roofline_as_a_picture_and_a_page(tmp_path: Path) -> None:
    """-o draws the steps of the recording, by the suffix; they are those of the JSON."""
    point = figures("traces/interleaved_cpu_2ranks")["roofline"]
    chart, page = tmp_path / "roofline.svg", tmp_path / "roofline.html"
    run("traces/interleaved_cpu_2ranks", "-o", str(chart), "-q")
    run("traces/interleaved_cpu_2ranks", "-o", str(page), "-q")

    assert [point["ccr"]] == [level["ccr"] for level in point["levels"]]
    assert len(point["steps"]) > 1
    assert all(f"{step['step']}:" in chart.read_text() for step in point["steps"])
    assert "On other numbers of ranks" in page.read_text()


def test_a_recording_is_predicted_from_some_of_its_steps(tmp_path: Path) -> None:
    """--steps is that of every verb, and without a recording it is refused; a file is announced once."""
    folder, path = str(ROOT / "traces" / "ddp_cpu_2ranks"), tmp_path / "out.txt"
    whole, part = (CliRunner().invoke(cli, ["predict", folder, "--json", *more]) for more in ([], ["--steps", "11"]))
    refused = CliRunner().invoke(cli, ["predict", "--params", "1e9", "--steps", "11"])
    written = CliRunner().invoke(cli, ["predict", folder, "-o", str(path)])

    assert (0, 0, 2) == (whole.exit_code, part.exit_code, refused.exit_code), part.output
    assert whole.stdout != part.stdout
    assert "--steps" in refused.output
    assert 1 == written.output.count(f"Wrote {path}")
