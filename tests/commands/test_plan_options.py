"""Options that describe a training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dptrace.commands.predict import command
from dptrace.commands.shared.main import cli
from dptrace.commands.shared.output import json_text
from dptrace.model.link_report import link_report
from tests.support.links_samples import ALPHA_S, BETA_S, GAMMA_S, measured, with_algorithms


@pytest.mark.parametrize("verb", ["predict", "memory", "advise"])
@pytest.mark.parametrize(
    "line",
    [
        "--strategy ddp --schedule gpipe",
        "--strategy fsdp --schedule interleaved --virtual-stages 2",
        "--strategy pp --pp 1 --schedule 1f1b",
        "--strategy pp --virtual-stages 4",
        "--virtual-stages 4",
        "--top-k 2",
        "--strategy ddp --shards 2",
        "--strategy fsdp --shards 2",
        "--strategy hsdp --shards 3",
    ],
)
def test_an_option_without_effect_is_refused(verb: str, line: str) -> None:
    """Each verb names the last option, and exits with 2."""
    done = CliRunner().invoke(cli, [verb, "--params", "1e9", "--gpus", "8", *line.split()])

    assert 2 == done.exit_code, done.output
    assert [word for word in line.split() if word.startswith("--")][-1] in done.output or "--schedule" in done.output


@pytest.mark.parametrize(
    "line", ["--strategy ddp --pp 2 --schedule gpipe", "--schedule interleaved --virtual-stages 4", "--shards 4"]
)
def test_options_with_an_effect_are_taken(line: str) -> None:
    """Stages and groups may also be given by their degrees, or left to the search."""
    done = CliRunner().invoke(cli, ["predict", "--params", "1e9", "--gpus", "8", *line.split()])

    assert 0 == done.exit_code, done.output


def test_memory_has_no_links() -> None:
    """They change no byte, so the option is unknown."""
    assert 2 == CliRunner().invoke(cli, ["memory", "--params", "1e9", "--link", "pcie4"]).exit_code


@pytest.mark.parametrize("verb", ["predict", "memory", "advise"])
def test_one_of_each_is_singular(verb: str) -> None:
    """One GPU, layer, sample and token."""
    line = "--layers 1 --hidden 256 --gpus 1 --batch 1 --seq 1"
    text = " ".join(CliRunner().invoke(cli, [verb, *line.split()]).output.split())

    assert "1 layer" in text or "1 GPU" in text
    assert not [noun for noun in ("GPUs", "layers", "samples", "tokens", "ways") if f" 1 {noun}" in text], text


# ``dptrace predict --bytes``: one message.


TYPED = ("--bytes", "208MB", "--gpus", "4", "--link", "5us:25GB/s")


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(command, list(arguments), standalone_mode=False)
    assert code == (result.exit_code if result.exception is None else getattr(result.exception, "exit_code", 1))
    return str(result.exception) if result.exception is not None else result.output


def test_the_documents_comparison_is_printed() -> None:
    """From typed alpha and bandwidth: n*, regimes, volumes, and where the ring overtakes the tree."""
    text = run(*TYPED)

    assert all(fact in text for fact in ("125.0 kB", "bandwidth-bound", "312 MB", "1,248 MB", "100.0 kB"))


@pytest.mark.heavy
def test_pictures_and_json(tmp_path: Path) -> None:
    """By the suffix; the JSON has the figures."""
    chart, page = tmp_path / "message.svg", tmp_path / "message.html"
    run(*TYPED, "-o", str(chart), "-q")
    run(*TYPED, "-o", str(page), "-q")

    assert "halving-doubling" in chart.read_text()
    assert "Cost of a message" in page.read_text()
    assert 208e6 == json.loads(run(*TYPED, "--json"))["size_bytes"]


def test_measured_links_and_gamma(tmp_path: Path) -> None:
    """Alpha and beta of a point-to-point message, and the measured gamma unless one is typed."""
    path = tmp_path / "links.json"
    raw = with_algorithms(measured(kinds=("all_reduce", "send_recv")))
    path.write_text(json_text(link_report(raw)))
    base = ("--bytes", "1e6", "--gpus", "4", "--links", str(path), "--json")
    content = json.loads(run(*base))

    assert pytest.approx(ALPHA_S, rel=0.05) == content["links"][0]["alpha_s"]
    assert pytest.approx(1 / BETA_S, rel=0.05) == content["links"][0]["bytes_per_s"]
    assert pytest.approx(GAMMA_S, rel=0.05) == content["gamma_s_per_byte"]
    assert pytest.approx(2e-12) == json.loads(run(*base, "--gamma", "2"))["gamma_s_per_byte"]


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (("--bytes", "1MB", "--gpus", "1"), "--gpus 1"),
        (("--bytes", "1MB", "--params", "7e9"), "--params"),
        (("--bytes", "1MB", "--tokens", "1e9"), "--tokens"),
        (("--bytes", "1MB", "--link", "wire"), "wire"),
        (("--gamma", "1", "--params", "7e9"), "--bytes"),
        (("traces/ddp_cpu_2ranks", "--bytes", "1MB"), "--bytes"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], fact: str) -> None:
    """Wrong use names the option."""
    assert fact in run(*arguments, code=2)
