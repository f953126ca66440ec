"""Formulas of the bytes that sharded modes and compressed gradients move per step, in the terms of the trace."""

from __future__ import annotations

import math
from collections.abc import Callable

from tests.support.formulas import ModelSizes


def _blocks(numbers: ModelSizes) -> list[list[tuple[int, ...]]]:
    """Return the shapes of each block's parameters: the blocks of an MLP are its layers, with a weight and a bias."""
    return [list(pair) for pair in zip(numbers.shapes[::2], numbers.shapes[1::2], strict=True)]


def zero2(numbers: ModelSizes) -> dict[str, tuple[int, int]]:
    """A reduce-scatter and an all-gather of each block, padded to shards of equal size (P_os+g)."""
    sizes = [sum(math.prod(shape) for shape in block) for block in _blocks(numbers)]
    filled_up = sum(numbers.ranks * math.ceil(size / numbers.ranks) for size in sizes)
    moved = len(sizes), numbers.element * filled_up
    return {"reduce_scatter": moved, "all_gather": moved}


def fully_sharded(numbers: ModelSizes, shards: int = 0, gathers: int = 2) -> dict[str, tuple[int, int]]:
    """Two all-gathers and a reduce-scatter of each block, or one all-gather if it stays gathered (Zhao et al. 2023).

    fully_shard splits each parameter's first dimension, padded to shards of equal size: one for each rank by default.
    """
    shards = shards or numbers.ranks
    filled_up = sum(shards * math.ceil(first / shards) * math.prod(rest) for first, *rest in numbers.shapes)
    count, padded = len(_blocks(numbers)), numbers.element * filled_up
    return {"all_gather": (gathers * count, gathers * padded), "reduce_scatter": (count, padded)}


def fsdp_kept(numbers: ModelSizes) -> dict[str, tuple[int, int]]:
    return fully_sharded(numbers, gathers=1)


def hsdp(numbers: ModelSizes) -> dict[str, tuple[int, int]]:
    """In nodes of two the traffic of fsdp, and an all-reduce of each block's shard across nodes."""
    inside = fully_sharded(numbers, 2)
    count, size = inside["reduce_scatter"]
    return inside | {"all_reduce": (count, size // 2)}


def mixed(gathered: int, reduced: int, scaled: bool = False) -> Callable[[ModelSizes], dict[str, tuple[int, int]]]:
    """The traffic of fsdp with *gathered* bytes for a parameter and *reduced* for a gradient, instead of 4 for both.

    Args:
        scaled: whether the ranks agree on an overflow, in a message of 4 bytes.
    """

    def expected_traffic(numbers: ModelSizes) -> dict[str, tuple[int, int]]:
        (gathers, parameters), (scatters, gradients) = fully_sharded(numbers).values()
        agreed = {"all_reduce": (1, 4)} if scaled else {}
        return {
            "all_gather": (gathers, parameters // 4 * gathered),
            "reduce_scatter": (scatters, gradients // 4 * reduced),
            **agreed,
        }

    return expected_traffic


def packed(bits: int) -> Callable[[ModelSizes], dict[str, tuple[int, int]]]:
    """From each rank *bits* for each value, in groups of 512 with 4 bytes more, in one bucket."""

    def expected_traffic(numbers: ModelSizes) -> dict[str, tuple[int, int]]:
        groups = math.ceil(numbers.total // 4 / 512)
        return {"all_gather": (1, numbers.ranks * groups * (512 * bits // 8 + 4))}

    return expected_traffic


def randomk(numbers: ModelSizes) -> dict[str, tuple[int, int]]:
    """A tenth of the values in one bucket; their positions are not sent, and the values summed on their way."""
    return {"all_reduce": (1, 4 * int(0.1 * (numbers.total // 4)))}


def thresholded(numbers: ModelSizes) -> dict[str, tuple[int, int | None]]:
    """How many values are sent depends on the data: an all-gather of their numbers, and one of positions and values."""
    return {"all_gather": (2, None)}
