"""Parameters by shape, against those of published models."""

from __future__ import annotations

from typing import Any

import pytest

from dptrace.errors import UsageError
from dptrace.model.planning.describe import Description
from dptrace.model.training.shape import decoder_shape

MEGATRON = [
    # heads, hidden, layers, billions of parameters: arXiv 2104.04473, table 1
    (24, 2304, 24, 1.7),
    (32, 3072, 30, 3.6),
    (32, 4096, 36, 7.5),
    (48, 6144, 40, 18.4),
    (64, 8192, 48, 39.1),
    (80, 10240, 60, 76.1),
    (96, 12288, 80, 145.6),
    (128, 16384, 96, 310.1),
    (128, 20480, 105, 529.6),
    (160, 25600, 128, 1008.0),
]


def test_the_models_of_megatron_have_the_published_size() -> None:
    """The formula gives the table's billions."""
    shapes = [decoder_shape(layers, hidden, heads=heads) for heads, hidden, layers, _ in MEGATRON]

    assert pytest.approx([row[3] for row in MEGATRON], abs=0.051) == [shape.parameters / 1e9 for shape in shapes]


def test_llamas_are_counted_to_the_last_parameter() -> None:
    """LLaMA-7B, Llama 2 70B with 8 key heads, and Llama 3 405B, as their checkpoints have them."""
    small = decoder_shape(32, 4096, vocabulary=32_000, family="llama")
    large = decoder_shape(80, 8192, key_value_heads=8, mlp=28_672, vocabulary=32_000, family="llama")
    largest = decoder_shape(126, 16_384, key_value_heads=8, mlp=53_248, vocabulary=128_256, family="llama")

    assert [6_738_415_616, 68_976_648_192, 405_853_388_800] == [m.parameters for m in (small, large, largest)]


def test_the_guides_mixture_of_experts() -> None:
    """Guide, section 12.3: Mixtral 8x7B has 46.7 billion parameters, of which a token uses 12.9 billion."""
    mixtral = decoder_shape(
        32, 4096, key_value_heads=8, mlp=14_336, vocabulary=32_000, family="llama", experts=8, top_k=2
    )

    assert (46.7, 12.9) == (round(mixtral.parameters / 1e9, 1), round(mixtral.active_parameters / 1e9, 1))


def test_parameters_and_shape_are_of_one_model() -> None:
    """A number of parameters scales the shape a little, and is refused where it is of another model."""
    described = Description(params=7e9, layers=32, hidden=4096)

    assert pytest.approx(7e9) == described.shape().parameters
    assert pytest.approx(1.05, abs=0.02) == described.shape().scale
    with pytest.raises(UsageError, match="70 layers of 8192"):
        Description(params=7e9, layers=70, hidden=8192).shape()


@pytest.mark.parametrize(
    ("given", "expected"),
    [({"hidden": 8192}, (8, 8192)), ({"layers": 64}, (64, 2944)), ({"hidden": 4096, "family": "llama"}, (33, 4096))],
)
def test_a_part_of_the_shape_gives_the_rest(given: dict[str, Any], expected: tuple[int, int]) -> None:
    """7 billion parameters of another width have other layers: what is missing is derived, and said."""
    described = Description(params=7e9, **given)
    shape = described.shape()

    assert expected == (shape.layers, shape.hidden)
    assert pytest.approx(7e9, rel=0.06) == shape.shape_parameters
    assert "derived from --params and" in described.assumptions()[0]


@pytest.mark.parametrize(
    ("given", "fact"),
    [({"heads": 7}, "--heads 7"), ({"heads": 32, "kv_heads": 5}, "--kv-heads 5"), ({"hidden": 65_536}, "1 layer of")],
)
def test_what_contradicts_itself_is_refused(given: dict[str, Any], fact: str) -> None:
    """Heads divide the width, keys' heads the heads, and a layer may have more parameters than the model."""
    with pytest.raises(UsageError, match=fact):
        Description(params=7e9, **given).check()


@pytest.mark.parametrize("params", [200e6, 500e6, 1e9, 2e9, 4e9, 20e9, 100e9, 250e9, 405e9])
def test_a_size_between_published_models_is_not_deeper_than_these(params: float) -> None:
    """The next larger model gets fewer layers: a billion has 16 layers of 2,048, not 47 of 1,280."""
    shape = Description(params=params).shape()

    assert shape.hidden >= 16 * shape.layers
    assert pytest.approx(params, rel=0.16) == shape.shape_parameters
