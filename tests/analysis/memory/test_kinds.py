"""Kinds of blocks, by how long they live."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dptrace.analysis.memory.usage import KIND_LABELS, MemoryKind
from tests.support.kineto_files import KinetoFile
from tests.support.memory_files import GOLDEN, only_device, training_file


def kinds(path: Path) -> dict[int, str]:
    device = only_device(path)
    return dict(zip(device.blocks.bytes.tolist(), map(KIND_LABELS.__getitem__, device.kind.tolist()), strict=True))


def test_kinds_follow_from_birth_and_death(tmp_path: Path) -> None:
    """A step's blocks, told apart by their sizes."""
    assert {
        40: "activations",
        8: "temporary",
        100: "gradients",
        16: "communication buffers",
        200: "optimizer state",
    } == kinds(training_file().write(tmp_path / "a.json"))


def test_what_was_there_before_is_known_only_when_it_is_freed(tmp_path: Path) -> None:
    """A free without an allocation is of a block from before the recording."""
    file = training_file()
    file.memory(99, -7, 77, allocated=1293, device=0)

    assert "before recording" == kinds(file.write(tmp_path / "a.json"))[7]


@pytest.mark.parametrize(("freed_at", "kind"), [(None, "other"), (250, "other"), (150, "activations")])
def test_what_outlives_two_steps_is_no_activation(tmp_path: Path, freed_at: float | None, kind: str) -> None:
    """A workspace that the first forward creates and keeps is not counted as an activation."""
    file = training_file()
    file.label("ProfilerStep#2", 200, 300)
    file.memory(11, 3, 66, allocated=1003, device=0).memory(299, 1, 67, allocated=1, device=0)
    if freed_at is not None:
        file.memory(freed_at, -3, 66, allocated=1000, device=0)

    assert kind == kinds(file.write(tmp_path / "a.json"))[3]


def test_without_an_optimizers_label_no_gradient_is_guessed(tmp_path: Path) -> None:
    """Nothing shows then which blocks of backward are gradients: they are of unknown kind."""
    file = KinetoFile().label("ProfilerStep#0", 0, 100).op("aten::mm", 10, 20)
    file.op("autograd::engine::evaluate_function: MmBackward0", 30, 60).memory(40, 100, 1, 100)

    assert {100: "other"} == kinds(file.write(tmp_path / "a.json"))


def test_gradients_are_those_that_the_recorder_counted() -> None:
    """Of each step of a real training, bytes and number equal what the tensors themselves had (run.json)."""
    counted = json.loads((GOLDEN / "run.json").read_text())["ranks"][0]["memory"]["gradients_bytes"]
    device = only_device(GOLDEN / "rank0.pt.trace.json.gz")
    own = device.kind == MemoryKind.GRADIENT
    step = device.origins.step[device.blocks.born[own]]

    assert [counted] * 2 == [int(device.blocks.bytes[own][step == k].sum()) for k in range(2)]
    assert 16 == int(own.sum())
