"""A model split into stages."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

torch = pytest.importorskip("torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

from dptrace.errors import RecordingError, UsageError  # noqa: E402
from dptrace.trainers.parts import models  # noqa: E402
from dptrace.trainers.parts.pipeline_stages import split_into_stages  # noqa: E402


@pytest.fixture(autouse=True)
def alone() -> Iterator[None]:
    """Join a process group of one, so that this rank has all stages."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    yield
    dist.destroy_process_group()


def layers(model: nn.Sequential, stages: int) -> list[list[str]]:
    return [list(dict(stage.named_children())) for stage in split_into_stages(model, stages).stages.values()]


def test_blocks_keep_their_names_and_their_activations() -> None:
    """A ReLU stays with the layer before it; the heaviest stage is as light as possible."""
    assert [["0", "1"], ["2", "3", "4", "5", "6"]] == layers(models.build_mlp("small"), 2)
    assert [["0", "1"], ["2", "3"], ["4", "5"], ["6"]] == layers(models.build_mlp("small"), 4)


def test_equal_blocks_are_dealt_out_equally() -> None:
    """The balanced model's eight blocks form stages with equally many blocks."""
    assert [["0", "1", "2", "3"], ["4", "5", "6", "7"]] == layers(models.balanced(), 2)
    assert 8 == len(layers(models.balanced(), 8))
    assert 1 == len({sum(p.numel() for p in block.parameters()) for block in models.balanced()})


def test_a_table_that_is_looked_up_in_weighs_nothing() -> None:
    """A decoder's embedding has many parameters and little computation."""
    assert [["0", "1", "2"], ["3", "4", "5"]] == layers(models.build_gpt("gpt-tiny"), 2)


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


def test_more_stages_than_blocks_are_refused() -> None:
    """The message says what to change."""
    with pytest.raises(UsageError, match="4 blocks, too few for 5 stages"):
        split_into_stages(models.build_mlp("small"), 5)
