"""Options that describe a training."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from dptrace.commands.shared.main import cli


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
