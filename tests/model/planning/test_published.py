"""The page of published trainings: docs/published.md, from docs/published.csv."""

from __future__ import annotations

import re
import runpy
from typing import Any

import pytest
from msgspec.structs import replace

import dptrace
from dptrace.model.planning.published import KINDS, kind_name, unlike
from dptrace.model.planning.reports import advice_report, predict_report
from dptrace.viewers.planning.tables import facts
from tests.support.paths import ROOT

SCRIPT = runpy.run_path(str(ROOT / "docs" / "make_published.py"))


@pytest.fixture(scope="module")
def runs() -> Any:
    return SCRIPT["runs"]()


@pytest.fixture(scope="module")
def with_layouts() -> Any:
    return SCRIPT["runs"](alone=False)


@pytest.mark.heavy
def test_each_kind_is_off_by_as_much_as_the_answers_say(with_layouts: Any) -> None:
    """Medians with a run's source left out: 16 bits below 8 %, float8 15 %, experts 25 %.

    Ranges that the other sources give hold 80 % of the runs; two sources of long samples give none.
    """
    found = SCRIPT["kinds"](with_layouts)
    most = {"dense in 16 bits": 0.08, "dense in float8": 0.15, "mixture of experts": 0.25, "long samples": 0.45}
    page = (ROOT / "docs" / "published.md").read_text(encoding="utf-8")

    assert found == list(KINDS.values()), "write what docs/make_published.py prints to planning/published.py"
    assert SCRIPT["left_out"](found) in page
    assert list(most) == list(KINDS)
    for kind in found:
        assert kind.runs >= 15
        assert kind.left_out <= most[kind.name]
        assert kind.median <= min(most[kind.name], 0.2)
        assert (kind.factor is None) == (kind.sources < 4)
        assert kind.factor is None or kind.inside >= 0.8 * kind.runs


def test_each_published_run_is_like_published_ones(with_layouts: Any) -> None:
    """But for those with long samples, whose range is unknown."""
    found = [one.layout.plan for one in with_layouts if one.layout]
    few = {kind_name(one.plan) for one in found if unlike(one.plan, one.step)}

    assert {"long samples"} == few


def test_each_command_of_the_page_uses_all_its_options() -> None:
    """None is refused as one that nothing of the training uses."""
    commands = re.findall(r"^dptrace predict (.*)$", (ROOT / "docs" / "published.md").read_text(encoding="utf-8"), re.M)
    for command in commands:
        described = SCRIPT["described"](command.partition(" --tokens ")[0])
        given = {word[2:].replace("-", "_") for word in command.split() if word.startswith("--")}
        replace(described, given=frozenset(given)).check_given()

    assert len(commands) > 120


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("options", "why"),
    [
        ("--params 13e9 --strategy fsdp --cpu-offload", "CPU's memory"),
        ("--params 7e9 --gpu rtx4090 --strategy fsdp", "RTX 4090"),
        ("--params 7e9 --gpu mine:300:80:2000 --strategy fsdp", "mine"),
        ("--params 7e9 --gpu mi300x --strategy fsdp", "MI300X"),
        ("--model llama3-70b --gpus 64 --strategy tp --tp 16 --zero 3", "TP 16"),
        ("--model mixtral-8x7b --seq 32768 --gpus 64 --strategy fsdp --cp 4", "mixture of experts"),
        ("--model llama3-8b --seq 32768 --gpus 64 --strategy fsdp --cp 4", "2 sources"),
        ("--params 7e9 --strategy fsdp --mfu 0.5", "share"),
        ("--params 7e9 --strategy fsdp --gpu h100-pcie", "50.4 GB/s"),
        ("--params 7e9 --strategy fsdp --gpus 64 --link nvlink4,eth-10", "0.875 GB/s"),
        ("--params 1.3e9 --gpus 1", "1 GPU"),
        ("--params 100e6 --strategy fsdp", "0.1 billion parameters, published ones 1.65 to 1,008"),
        ("--params 7e9 --precision fp8 --gpus 4096", "4,096 GPUs, published ones on 8 to 1,024"),
        (
            "--params 4e12 --gpus 4096 --strategy 3d --tp 8 --pp 32 --zero 3 --gpu-memory 200GB",
            "4,000 billion parameters",
        ),
        ("--params 7e9 --seq 1", "1 token, published ones 2,048"),
        ("--model qwen3-30b-a3b --seq 1", "1 token, published ones 4,096"),
        ("--layers 200 --hidden 768 --strategy fsdp --micro-batch 1", "launch"),
        ("--params 7e9 --precision fp32 --strategy fsdp", "fp32"),
        ("--params 1e6", "decoders"),
    ],
)
def test_where_no_published_run_is_like_it_the_range_is_unknown(options: str, why: str) -> None:
    """No range, and why, in figures and in words."""
    content = predict_report(SCRIPT["described"](options))
    expected, said = content["expected"], facts(content)

    assert why in expected["unknown"]
    assert expected["low_s"] is expected["high_s"] is None
    assert any(expected["unknown"] in line for line in said)
    assert not any(line.startswith("Expect ") for line in said)


@pytest.mark.heavy
def test_advice_has_the_range_of_its_best_plan() -> None:
    """Offloaded, it is unknown; else it is what the prediction of that plan says."""
    known = advice_report(SCRIPT["described"]("--params 7e9"))
    offloaded = advice_report(SCRIPT["described"]("--params 7e9 --cpu-offload"))

    assert known["expected"] == dptrace.predict(params=7e9)["expected"]
    assert any(line.startswith("Expect ") for line in facts(known))
    assert any(offloaded["expected"]["unknown"] in line for line in facts(offloaded))


def test_a_range_is_around_the_step() -> None:
    """7 billion on 64 H100s in 16 bits, of which runs are published."""
    content = dptrace.predict(params=7e9, gpus=64, strategy="fsdp")

    assert content["expected"]["unknown"] is None
    assert content["expected"]["low_s"] < content["step_s"] < content["expected"]["high_s"]
    assert any(line.startswith("Expect ") for line in facts(content))


@pytest.mark.slow  # 66 searches for a layout
def test_no_run_is_far_off_without_a_reason(runs: Any) -> None:
    """In time, in memory, or in that it fits; of Llama 3 405B the search finds the layout that ran.

    Its stages stay gathered in a step, as those of ZeRO-2 and, in a pipeline, of FSDP do.
    """
    far = {run.row["run"] for run in runs for one in (run.layout, run.alone) if one and abs(one.error) > 0.3}
    far |= {run.row["run"] for run in runs if run.row["memory_gib"] and round(abs(off(run)), 2) > 0.1}
    far |= {run.row["run"] for run in runs if run.layout and not run.layout.plan.fits}
    llama = [run.alone.plan.label for run in runs if run.row["run"].startswith("Llama 3 405B")]

    assert {run.row["run"] for run in runs if run.row["reason"]} == far
    assert ["TP 8 × PP 16 v8 × ZeRO-2 ×64", "TP 8 × PP 16 v8 × FSDP ×128"] == llama


def off(run: Any) -> float:
    """Return predicted over measured memory, minus one."""
    return float(run.layout.plan.memory_bytes / (float(run.row["memory_gib"]) * 2**30) - 1)


def test_measured_memory(with_layouts: Any) -> None:
    """What torchtitan reserved at most: 15 of 18 runs within 10 %, all within 20 %."""
    errors = sorted(abs(off(run)) for run in with_layouts if run.row["memory_gib"])

    assert 18 == len(errors)
    assert round(errors[14], 2) <= 0.1
    assert errors[-1] < 0.2


@pytest.mark.slow
def test_the_page_has_what_is_predicted_now(runs: Any) -> None:
    """If it has not, run python docs/make_published.py."""
    page = (ROOT / "docs" / "published.md").read_text(encoding="utf-8")

    assert SCRIPT["table"](runs) in page
