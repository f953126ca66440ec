"""Pipelines: a model split into stages, the activations that a schedule holds, and versions of torch."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402

from dptrace.errors import RecordingError, UsageError  # noqa: E402
from dptrace.trainers.parts import models  # noqa: E402
from dptrace.trainers.parts.pipeline_stages import split_into_stages  # noqa: E402

if TYPE_CHECKING:
    from dptrace.trainers.parts.pipeline_schedule import InFlight

FLOAT = 4
SCHEDULE = "dptrace.trainers.parts.pipeline_schedule"
"""Imports torch's pipelines, which takes two seconds: not where tests are collected."""

pytestmark = pytest.mark.usefixtures("alone")


def layers(model: nn.Sequential, stages: int) -> list[list[str]]:
    return [list(dict(stage.named_children())) for stage in split_into_stages(model, stages).stages.values()]


def test_blocks_keep_their_names_and_their_activations() -> None:
    """A ReLU stays with the layer before it; the heaviest stage is as light as possible; an embedding, with many
    parameters and little computation, weighs nothing."""
    small = models.build_mlp("small")
    assert [["0", "1"], ["2", "3", "4", "5", "6"]] == layers(small, 2)
    assert [["0", "1"], ["2", "3"], ["4", "5"], ["6"]] == layers(small, 4)
    assert [["0", "1", "2"], ["3", "4", "5"]] == layers(models.build_gpt("gpt-tiny"), 2)
    with pytest.raises(UsageError, match="4 blocks, too few for 5 stages"):
        split_into_stages(small, 5)


@pytest.mark.heavy
def test_equal_blocks_are_dealt_out_equally() -> None:
    """The balanced model's eight blocks form stages with equally many blocks."""
    assert [["0", "1", "2", "3"], ["4", "5", "6", "7"]] == layers(models.balanced(), 2)
    assert 8 == len(layers(models.balanced(), 8))
    assert 1 == len({sum(p.numel() for p in block.parameters()) for block in models.balanced()})


def test_the_whole_has_all_parameters_by_their_names() -> None:
    """The gathered parameters are in the order of the model, whatever their stage."""
    model = models.build_mlp("small")
    pieces = split_into_stages(model, 3)
    whole = pieces.full_parameters()

    assert list(dict(model.named_parameters())) == list(whole)
    assert all(torch.equal(parameter, whole[name]) for name, parameter in model.named_parameters())
    assert sum(p.numel() for p in model.parameters()) == pieces.parameters


def test_parameters_that_are_no_longer_finite_are_reported() -> None:
    """The message names the parameter."""
    pieces = split_into_stages(models.build_mlp("small"))
    with torch.no_grad():
        pieces.stages[0].get_parameter("2.weight")[0, 0] = float("nan")
    with pytest.raises(RecordingError, match=r"2\.weight is no longer finite"):
        pieces.full_parameters()


def in_flight(*arguments: Any, **options: Any) -> InFlight:
    counted: InFlight = importlib.import_module(SCHEDULE).InFlight(*arguments, **options)
    return counted


def forward(counted: InFlight, layers: Any, stage: int, micro_batch: int) -> None:
    with counted.forward(stage, micro_batch):
        layers(torch.ones(5, 8, requires_grad=True))


def test_the_most_micro_batches_at_once_are_counted() -> None:
    """Of two stages, each counts; a backward releases its own, and what follows the step is not counted."""
    layers = torch.nn.Linear(8, 8)
    counted = in_flight(layers.parameters())
    for stage, micro_batch in ((0, 0), (1, 0)):
        forward(counted, layers, stage, micro_batch)
    counted.backward(1, 0)
    forward(counted, layers, 0, 1)

    assert (2, 2 * 5 * 8 * FLOAT) == (counted.peak, counted.peak_bytes)
    counted.close()
    for micro_batch in range(4):
        forward(counted, layers, 0, micro_batch)
    assert 2 == counted.peak


def test_a_tensor_counts_once_and_parameters_do_not() -> None:
    """A ReLU's output is kept by the ReLU and by the layer after it: the input, that output, and the output's input."""
    layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    counted = in_flight(layers.parameters())
    forward(counted, layers, 0, 0)

    assert 5 * (8 + 16) * FLOAT == counted.peak_bytes


def test_the_loss_belongs_to_the_latest_forward() -> None:
    """What softmax keeps is added to the micro-batch; before any forward, as where torch finds shapes, nothing is."""
    layers = torch.nn.Linear(8, 3, bias=False)
    counted = in_flight(layers.parameters())
    with counted.more():
        layers(torch.ones(5, 8, requires_grad=True))
    assert (0, 0) == (counted.peak, counted.peak_bytes)
    with counted.forward(0, 0):
        scores = layers(torch.ones(5, 8))
    with counted.more():
        scores.softmax(-1)

    assert 5 * (8 + 3) * FLOAT == counted.peak_bytes


def test_without_bytes_micro_batches_are_still_counted() -> None:
    """Under torch.compile, hooks would change what is compiled."""
    layers = torch.nn.Linear(8, 8)
    counted = in_flight(layers.parameters(), in_bytes=False)
    forward(counted, layers, 0, 0)

    assert (1, 0) == (counted.peak, counted.peak_bytes)


def test_a_torch_without_pipelines_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that lacks a schedule gives advice instead of a traceback of the import."""
    monkeypatch.setitem(sys.modules, "torch.distributed.pipelining", None)
    monkeypatch.delitem(sys.modules, SCHEDULE, raising=False)

    with pytest.raises(UsageError, match=r"2\.6"):
        importlib.import_module(SCHEDULE)
