"""``dptrace predict --bytes``: one message."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from dptrace.commands.planning.predict import command
from dptrace.commands.shared.output import json_text
from dptrace.model.link_report import link_report
from tests.support.links_samples import ALPHA_S, BETA_S, GAMMA_S, measured, with_algorithms

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
