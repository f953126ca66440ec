"""Layers split over ranks: their joint result, their gradients, and the gathered parameters."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")


from dptrace.errors import RecordingError  # noqa: E402
from dptrace.trainers.parts import models  # noqa: E402
from dptrace.trainers.parts.tensor_parallel import TensorParallel  # noqa: E402


def built(name: str) -> Any:
    torch.manual_seed(1)
    if name == "balanced":
        return models.balanced()
    return models.build_gpt(name) if name in models.SIZES else models.build_mlp(name)


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "sequence"), [("small", False), ("balanced", False), ("gpt-tiny", True)])
def test_a_model_of_one_rank_is_the_model_itself(name: str, sequence: bool, alone: Any) -> None:
    """Names, outputs and gathered parameters are the same."""
    plain, split = built(name), built(name)
    tensors = TensorParallel(alone, sequence)
    tensors.split(split)
    x = torch.randint(0, 512, (2, 64)) if name == "gpt-tiny" else torch.randn(3, 784)

    assert [n for n, _ in plain.named_parameters()] == [n for n, _ in split.named_parameters()]
    assert torch.allclose(plain(x), split(x), atol=1e-5)
    whole = tensors.full_parameters(split.named_parameters())
    assert all(torch.equal(parameter, whole[n]) for n, parameter in plain.named_parameters())
    assert sum(p.numel() for p in plain.parameters()) == tensors.parameters


@pytest.mark.heavy
def test_pairs_are_cut_and_the_layer_that_is_left_over_is_not(alone: Any) -> None:
    """Five layers form two pairs; a bias that is added after the sum is not split."""
    tensors = TensorParallel(alone)
    tensors.split(built("medium"))

    columns = {f"{layer}.{part}": 0 for layer in (0, 4) for part in ("weight", "bias")}
    assert columns | {"2.weight": 1, "6.weight": 1} == tensors.sharded_dims


def test_what_is_on_several_ranks_is_reported(alone: Any) -> None:
    """A split parameter exists once in each replica, any other on every rank of it."""
    model, tensors = built("small"), TensorParallel(alone)
    tensors.split(model)
    tensors.size = 4

    replica_counts = {name: tensors.replica_counts(model, 3)[parameter] for name, parameter in model.named_parameters()}
    assert (3, 3, 12) == (replica_counts["0.weight"], replica_counts["2.weight"], replica_counts["2.bias"])


def test_only_some_tokens_teach_norms_and_biases_of_rows(alone: Any) -> None:
    """Two norms of two parameters and two biases in each of four blocks; head and embedding see all tokens."""
    tensors = TensorParallel(alone, sequence=True)
    tensors.split(built("gpt-tiny"))

    assert 4 * 6 == len(tensors.partial)


def test_parts_that_are_no_longer_finite_are_reported(alone: Any) -> None:
    """The message names the parameter."""
    model, tensors = built("small"), TensorParallel(alone)
    tensors.split(model)
    with torch.no_grad():
        model[2].weight[0, 0] = float("nan")
    with pytest.raises(RecordingError, match=r"2\.weight is no longer finite"):
        tensors.full_parameters(model.named_parameters())
