"""How two recordings differ in setup."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from msgspec.structs import replace

from dptrace.comparison.differences import differences, drawn_differences, incomparable
from tests.support.builders import TimelineBuilder
from tests.support.jobs import job, run_of


def info(**changed: Any) -> dict[str, Any]:
    options = {"batch_size": 256, "lr": 0.1, **changed.pop("options", {})}
    return {"mode": "naive", "model": "small", "options": options, "versions": {"torch": "2.9"}, **changed}


def test_nothing_is_said_of_what_is_alike() -> None:
    """Nor of a run without run.json."""
    a, b = job(metadata=info()), job(metadata=info())

    assert [] == differences(a, b, [(0, 0), (1, 0)])
    assert [] == differences(a, job(), [(0, 0), (1, 0)])


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"mode": "ddp"}, "Mode: A naive, B ddp."),
        ({"model": "large"}, "Model: A small, B large."),
        ({"options": {"batch_size": 512}}, "Option batch size: A 256, B 512."),
        ({"versions": {"torch": "2.10"}}, "Version of torch: A 2.9, B 2.10."),
    ],
)
def test_what_run_json_shows_is_reported(changed: dict[str, Any], words: str) -> None:
    """One sentence for each difference."""
    assert [words] == differences(job(metadata=info()), job(metadata=info(**changed)), [(0, 0), (1, 0)])


@pytest.mark.parametrize("strange", [[], "x", None, {"torch": {"a": 1}}, {1: 2}])
def test_a_strange_run_json_does_no_harm(strange: object) -> None:
    """It is somebody's file."""
    odd = dict.fromkeys(info(), strange)

    assert isinstance(differences(job(metadata=odd), job(metadata=info()), None), list)


def test_world_sizes_ranks_and_devices_are_reported() -> None:
    """World size, ranks that one lacks, no rank in common, CPU against GPU."""
    a = job(ranks=4)
    few = dataclasses.replace(a, timelines=a.timelines[:2], devices=())
    cpu = run_of([replace(t, device=-1, device_name="CPU") for t in a.timelines])

    assert "A had 4 ranks, B 2" in differences(a, job(ranks=2), None)[0]
    assert "A had 1 rank, B 2" in differences(job(ranks=1), job(ranks=2), None)[0]
    assert "2 of 4 ranks" in differences(a, few, [(0, 0), (1, 0)])[0]
    assert (
        "no rank in common" in differences(few, dataclasses.replace(a, timelines=a.timelines[2:], devices=()), None)[0]
    )
    assert ["A shows operators on CPUs", "Device: A CPU, B NVIDIA H100."] == [
        text.partition(", B kernels")[0] for text in differences(cpu, a, [(rank, 0) for rank in range(4)])
    ]


def test_what_is_drawn_beside_each_other_shows_ranks_that_are_missing() -> None:
    """Missing ranks, world sizes and models are listed, but not means, since each run is drawn as it is."""
    a = job(ranks=4, metadata=info())
    few = dataclasses.replace(a, timelines=a.timelines[:1], devices=())

    assert [] == drawn_differences(a, a)
    (note,) = drawn_differences(a, few)
    assert "B: 1 of 4 ranks" in note
    other = job(ranks=2, metadata=info(model="large"))
    assert ["A had 4 ranks, B 2.", "Model: A small, B large."] == drawn_differences(a, other)


def test_only_another_work_is_incomparable() -> None:
    """CPUs against GPUs, another model, no backward; not another number of ranks, device, or option."""
    a = job(metadata=info())
    cpu = run_of([replace(t, device=-1, device_name="CPU") for t in a.timelines])
    forward = run_of([TimelineBuilder(0).build()])
    faster = run_of([replace(t, device_name="NVIDIA H200") for t in a.timelines], metadata=info(mode="ddp"))

    assert "A shows operators on CPUs, B kernels on GPUs" == incomparable(cpu, a)
    assert "A trained the model small, B large" == incomparable(a, job(metadata=info(model="large")))
    assert "A has no backward, B has one" == incomparable(forward, a)
    assert "B has no backward, A has one" == incomparable(a, forward)
    assert "" == incomparable(a, faster) == incomparable(a, job(ranks=4))
