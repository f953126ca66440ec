"""``dptrace memory``: from a description, and beside a recording."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dptrace.commands.memory import command
from dptrace.commands.recorded_plan import compared_memory
from dptrace.record.options.modes import MODES
from tests.support.modes import ADAMW, CASES, ModeCase, run_of


def run(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(command, list(arguments), standalone_mode=False)
    assert code == (result.exit_code if result.exception is None else getattr(result.exception, "exit_code", 1))
    return str(result.exception) if result.exception is not None else result.output


def figures(*arguments: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(run(*arguments, "--json").partition("\n! ")[0])
    return content


def test_seven_billion_parameters() -> None:
    """The guide's section 1.2: 112 GB of state, two GPUs of 80 GB; DDP does not fit, ZeRO-3 on eight does."""
    alone, sharded = figures("--params", "7e9"), figures("--params", "7B", "--strategy", "zero3")

    assert (112_000_000_000, 2, False) == (alone["model_state_bytes"], alone["gpus_for_state"], alone["fits"])
    assert (112_000_000_000, True) == (sharded["model_state_bytes"], sharded["fits"])
    assert sum(sharded["per_gpu"].values()) == pytest.approx(sharded["per_gpu_bytes"], abs=8)
    assert sharded["per_gpu_bytes"] < alone["per_gpu_bytes"]


def test_the_guides_sample_of_gpt3() -> None:
    """Section 1.2: 2.8 TB of state and 275 GB of activations for one sample."""
    content = figures("--params", "175e9", "--layers", "96", "--hidden", "12288", "--heads", "96", "--gpus", "1")

    assert 2_800_000_000_000 == content["model_state_bytes"]
    assert 275 == round(content["activation_bytes"] / 1e9)


def test_every_option_changes_a_figure() -> None:
    """No option is ignored: each gives other bytes on a GPU than without it."""
    base = ("--params", "7e9", "--gpus", "16", "--strategy", "3d", "--tp", "2", "--pp", "4")
    plain = figures(*base)["per_gpu_bytes"]
    changed = {
        option: figures(*base, *option.split())["per_gpu_bytes"]
        for option in (
            "--seq 4096",
            "--vocab 100000",
            "--heads 64",
            "--mlp 8192",
            "--family llama",
            "--precision fp32",
            "--optimizer sgd",
            "--no-master-weights",
            "--gradient-bytes 4",
            "--micro-batch 2",
            "--recompute full",
            "--attention flash",
            "--no-dropout",
            "--gpus 32",
            "--pp 2",
            "--tp 4",
            "--zero 3",
            "--schedule gpipe",
            "--schedule interleaved",
            "--schedule interleaved --virtual-stages 4",
            "--kv-heads 8",
        )
    }
    assert not [option for option, size in changed.items() if size == plain]


def test_the_text_answers() -> None:
    """The tables name the parts, the strategies, and whether it fits."""
    text = run("--params", "70e9", "--gpus", "64", "--strategy", "fsdp", "--recompute", "full")

    assert "1,120.0 GB" in text
    assert "gathered parameters" in text
    assert "it fits" in text


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        ((), "--params"),
        (("--params", "seven"), "seven"),
        (("--params", "7e9", "--strategy", "dpp"), "dpp"),
        (("--params", "7e9", "--gpu", "h1000"), "h1000"),
        (("--params", "7e9", "--strategy", "tp", "--tp", "3"), "tp 3"),
        (("--params", "7e9", "--layers", "70", "--hidden", "8192"), "7e+09"),
        (("--params", "7e9", "--strategy", "3d", "--gpus", "64", "--batch", "7"), "--batch 7"),
        (("--params", "7e9", "--recompute-every", "2"), "add --recompute full"),
        (("--params", "7e9", "--recompute", "full", "--recompute-every", "99"), "the model has 32 layers"),
        (("--params", "7e9", "--strategy", "zero2", "--cpu-offload"), "--strategy fsdp"),
    ],
)
def test_what_is_refused(
    arguments: tuple[str, ...], fact: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wrong use names what is wrong."""
    monkeypatch.chdir(tmp_path)

    assert fact in run(*arguments, code=2)


def test_every_kth_layer_is_recomputed() -> None:
    """Of 32 layers every fourth: 8 keep their input only, 24 everything; the text says so."""
    every, recompute = ("--recompute-every", "4"), ("--params", "7e9", "--recompute", "full")
    fourth, full = figures(*recompute, *every)["activation_bytes"], figures(*recompute)["activation_bytes"]
    none = figures("--params", "7e9")["activation_bytes"]

    assert pytest.approx(0.25 * full + 0.75 * none) == fourth
    assert "recompute full in every 4th layer" in " ".join(run(*recompute, *every).split())


def test_offloaded_state_is_in_the_memory_of_the_cpu() -> None:
    """A GPU of eight holds what it gathers and activations; the CPU an eighth of 112 GB for each of them."""
    kept, offloaded = (figures("--params", "7e9", "--strategy", "fsdp", *more) for more in ((), ("--cpu-offload",)))

    assert (0, 14_000_000_000) == (kept["host_bytes"], offloaded["host_bytes"])
    assert 14_000_000_000 == kept["per_gpu_bytes"] - offloaded["per_gpu_bytes"]
    assert 0 == offloaded["per_gpu"]["optimizer_bytes"] < offloaded["per_gpu"]["gathered_bytes"]
    assert "in the CPU's memory" in run("--params", "7e9", "--strategy", "fsdp", "--cpu-offload")


def test_a_file_is_written_once(tmp_path: Path) -> None:
    """-o writes JSON or text, and overwrites only with --force."""
    path = tmp_path / "plan.json"
    run("--params", "7e9", "--json", "-o", str(path))

    assert 112_000_000_000 == json.loads(path.read_text())["model_state_bytes"]
    assert "--force" in run("--params", "7e9", "--json", "-o", str(path), code=2)
    run("--params", "13e9", "--json", "-o", str(path), "--force")
    assert 208_000_000_000 == json.loads(path.read_text())["model_state_bytes"]


def test_a_recording_without_memory_shows_what_to_expect() -> None:
    """Of a run from before memory was recorded: 8.4 million parameters in float32, SGD."""
    content = figures("traces/interleaved_cpu_2ranks")

    assert [4 * 8_432_138] * 2 == [row["expected_bytes"] for row in content["recorded"]["compared"][:2]]
    assert {None} == {row["measured_bytes"] for row in content["recorded"]["compared"]}


def _cases() -> list[ModeCase]:
    cases = {case.mode: case for case in reversed(CASES) if case.ranks == 2}
    four = {case.mode: case for case in CASES if case.ranks == 4 and case.mode not in cases}
    sharded = [case for case in CASES if case.extra_options == ADAMW]
    return [*cases.values(), *four.values(), *sharded]


def test_every_mode_is_compared() -> None:
    """The table has a case for each mode of several ranks."""
    assert set(MODES) - {"single"} == {case.mode for case in _cases()}


@pytest.mark.slow
@pytest.mark.spawn
@pytest.mark.parametrize("case", _cases(), ids=lambda case: case.name)
def test_each_mode_holds_what_the_formulas_say(case: ModeCase) -> None:
    """Parameters, gradients and optimizer state of the mean rank, as torch counts them: within 5 %."""
    folder = run_of(case)
    info = json.loads((folder / "run.json").read_text()) | {"mode": case.mode}  # the launcher adds it otherwise
    rows = compared_memory(info, str(folder))["recorded"]["compared"][:3]

    for row in rows:
        assert pytest.approx(row["expected_bytes"], rel=0.05) == row["measured_bytes"], row["what"]
