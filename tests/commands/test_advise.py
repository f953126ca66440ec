"""``dptrace advise``: text, JSON, charts and the page."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dptrace
from dptrace.commands.advise import command
from dptrace.commands.predict import command as predict

SEVENTY = ("--params", "70B", "--gpus", "64", "--seq", "4096", "--batch", "512")


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner(env={"COLUMNS": "140"}).invoke(command, list(arguments), standalone_mode=False)
    assert code == (result.exit_code if result.exception is None else getattr(result.exception, "exit_code", 1))
    return str(result.exception) if result.exception is not None else result.output


def figures(*arguments: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(run(*arguments, "--json").partition("\n! ")[0])
    return content


def test_json_is_what_python_returns() -> None:
    """The documented keys, and the same figures as dptrace.advise."""
    content = figures(*SEVENTY)

    assert content == json.loads(json.dumps(dptrace.advise(params=70e9, gpus=64, seq=4096, batch=512)))
    assert {"path", "tree", "chosen", "candidates", "checks", "assumptions"} <= content.keys()
    assert {"per_gpu_bytes", "fits", "step_ns", "tokens_per_s", "mfu", "efficiency"} <= content["chosen"].keys()
    assert {"applies", "gain_ns", "gain_bytes", "computed", "do"} <= content["checks"][0].keys()


def test_the_text_is_short_unless_all_is_asked_for() -> None:
    """The path, the plans and the items that gain come first; --all adds what does not apply, and the sources."""
    short, whole = run(*SEVENTY), run(*SEVENTY, "--all")

    assert "Does a GPU hold the whole training (DDP)?" in short
    assert "Fastest that fits" in short
    assert "too much" in short
    assert "does not apply" not in short
    assert "does not apply" in whole
    assert "Distributed Training" in whole
    assert len(short) < len(whole)


@pytest.mark.heavy
def test_a_page_and_a_chart(tmp_path: Path) -> None:
    """-o writes a page, a chart or the text, by the suffix."""
    page, chart, text = (tmp_path / f"advice{suffix}" for suffix in (".html", ".svg", ".txt"))
    for path in (page, chart, text):
        run(*SEVENTY, "-o", str(path), "-q")

    assert "Memory of a GPU" in page.read_text()
    assert "FSDP ×64" in chart.read_text()
    assert "Fastest that fits" in text.read_text()


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        ((), "--params 7e9"),
        (("--params", "7e9", "--json", "-o", "advice.html"), "advice.html"),
        (("traces/ddp_cpu_2ranks", "-o", "advice.html"), "advice.html"),
        (("traces/ddp_cpu_2ranks", "--gpus", "8"), "--gpus"),
        (("--params", "7e9", "--ranks", "0"), "--ranks"),
        (("--params", "7e9", "--no-cache"), "--no-cache"),
        (("--params", "7e9", "--gpu", "z80"), "z80"),
        (("--params", "7e9", "--gpus", "8", "--tp", "3"), "8 GPUs"),
        (("--params", "7e9", "--strategy", "ddp", "--batch", "3"), "--batch 3"),
    ],
)
def test_what_is_refused(arguments: tuple[str, ...], fact: str) -> None:
    """Wrong use names what is wrong."""
    assert fact in run(*arguments, code=2)


def test_an_output_is_not_overwritten(tmp_path: Path) -> None:
    """Without --force."""
    path = tmp_path / "advice.txt"
    path.write_text("mine")

    assert "advice.txt" in run("--params", "7e9", "-o", str(path), code=2)
    assert "mine" == path.read_text()


@pytest.mark.heavy
def test_a_recording() -> None:
    """Of a recorded training: where its step goes, and gains by replay; ranks and steps can be chosen."""
    text = run("traces/naive_cpu_2ranks")
    content = figures("traces/naive_cpu_2ranks", "--ranks", "0")

    assert "What takes most of the step?" in text
    assert "by replay" in text
    assert "naive" == content["mode"]
    assert "traces/naive_cpu_2ranks" == content["recorded"]


def test_every_plan_has_the_command_that_predicts_it() -> None:
    """FSDP in groups, combinations and interleaved stages too: dptrace predict finds the same step."""
    content = figures("--params", "13B", "--gpus", "32", "--gpus-per-node", "4", "--gpu", "a100-40")

    assert any(one["shards"] not in (1, one["degrees"]["dp"]) for one in content["candidates"])
    for one in content["candidates"]:
        arguments = shlex.split(one["command"])[2:]
        done = CliRunner().invoke(predict, [*arguments, "--json"], standalone_mode=False)
        predicted = json.loads(done.output.partition("\n! ")[0])
        assert one["step_ns"] == round(1e9 * predicted["step_s"]), one["command"]
        assert one["per_gpu_bytes"] == predicted["per_gpu_bytes"], one["command"]
