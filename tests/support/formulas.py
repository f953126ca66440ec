"""Published formulas of the bytes that modes move per step, in the terms of the trace."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

DECODER_SAMPLES = 4
"""Samples of gpt-tiny in a batch."""


@dataclass(frozen=True)
class ModelSizes:
    """The inputs of a formula for the bytes of a step."""

    parameter_bytes: tuple[int, ...]
    """Bytes of each parameter tensor of the whole model."""
    ranks: int
    shapes: tuple[tuple[int, ...], ...] = ()
    """Shape of each parameter."""
    names: tuple[str, ...] = ()
    """Name of each parameter."""
    rank: int = 0
    """The rank, if not all ranks move the same bytes."""

    @property
    def total(self) -> int:
        """Total bytes of all parameters."""
        return sum(self.parameter_bytes)

    @property
    def element(self) -> int:
        """Bytes of one number: 8 in float64."""
        return self.total // sum(map(math.prod, self.shapes))


def _activations(numbers: ModelSizes) -> int:
    """Return the bytes of gpt-tiny's activations between two layers: batch x tokens x width x bytes of a number."""
    return DECODER_SAMPLES * 64 * 128 * numbers.element


def tp_decoder(numbers: ModelSizes) -> dict[str, tuple[int, int]]:
    """Four all-reduces of the activations in each of four blocks: attention and MLP, forward and backward.

    The 4 of "4 x 2(T-1)/T x B x S x H" for each layer (the guide's chapter 9.5; Shoeybi et al. 2019, section 3).
    """
    return {"all_reduce": (4 * 4, 4 * 4 * _activations(numbers))}


def _tp_pairs(numbers: ModelSizes, batch: int) -> list[int]:
    """Return the bytes of small's two pairs of layers: outputs of 512 and 10, in backward the second pair's input."""
    return [batch * width * numbers.element for width in (512, 10, 512)]


def tp(numbers: ModelSizes) -> dict[str, tuple[int, int]]:
    return {"all_reduce": (3, sum(_tp_pairs(numbers, 128)))}


def tp_sp(numbers: ModelSizes) -> dict[str, tuple[int, int]]:
    """One all-gather and one reduce-scatter for each all-reduce of tp (Korthikanti et al. 2022, section 4.2.2).

    In addition, one all-gather for the head, one for the gradient of the embedding, and an all-reduce of the gradients
    that come from some of the tokens only: two norms, and the biases of the two row-parallel layers, in each block.
    """
    partial = [size for name, size in zip(numbers.names, numbers.parameter_bytes, strict=True) if _of_some(name)]
    return {
        "all_gather": (4 * 4 + 2, (4 * 4 + 2) * _activations(numbers)),
        "reduce_scatter": (4 * 4, 4 * 4 * _activations(numbers)),
        "all_reduce": (1, sum(partial)),
    }


def clipped(
    formula: Callable[[ModelSizes], dict[str, tuple[int, int]]],
) -> Callable[[ModelSizes], dict[str, tuple[int, int]]]:
    """Add the all-reduce of the gradient norm by ranks that hold different parameters."""

    def expected_traffic(numbers: ModelSizes) -> dict[str, tuple[int, int]]:
        found = formula(numbers)
        count, size = found["all_reduce"]
        return found | {"all_reduce": (count + 1, size + numbers.element)}

    return expected_traffic


def _of_some(name: str) -> bool:
    return "_norm." in name or name.endswith(("attention.out.bias", "mlp.down.bias"))


def dp_tp(numbers: ModelSizes) -> dict[str, tuple[int, int]]:
    """tp's traffic for half the batch in a row; in a column ddp's two buckets, half of all but the rows' biases."""
    pairs = zip(numbers.names, numbers.parameter_bytes, strict=True)
    own = [size if name in ("2.bias", "6.bias") else size // 2 for name, size in pairs]
    return {"all_reduce": (3 + 2, sum(_tp_pairs(numbers, 64)) + sum(own))}


def mesh_3d(tensor: int, replicas: int) -> Callable[[ModelSizes], dict[str, tuple[int, int]]]:
    """Eight equal blocks in two stages with four micro-batches: traffic of tp and pp, and of dp with several replicas.

    Each block all-reduces its activations forward and their gradients backward, the stages send them once, and each
    parameter's gradient is all-reduced once.
    """

    def expected_traffic(numbers: ModelSizes) -> dict[str, tuple[int, int]]:
        activations = 128 // replicas * 784 * numbers.element
        pairs = list(zip(numbers.names, numbers.parameter_bytes, strict=True))[: len(numbers.names) // 2]
        whole = ("norm.weight", "norm.bias", "down.bias")
        own = sum(size if name.endswith(whole) else size // tensor for name, size in pairs)
        passed_on = (4, activations)
        synced = (len(pairs), own) if replicas > 1 else (0, 0)
        all_reduce = (4 * 4 * 2 + synced[0], 4 * 2 * activations + synced[1])
        return {"all_reduce": all_reduce, "send": passed_on, "recv": passed_on}

    return expected_traffic


def half(numbers: ModelSizes) -> dict[str, tuple[int, int]]:
    return {"all_reduce": (2, numbers.total // 2)}


def int8(numbers: ModelSizes) -> dict[str, tuple[int, int]]:
    """From each rank a byte for each value and 4 for each of two buckets; an all-gather counts its whole output."""
    return {"all_gather": (2, numbers.ranks * (numbers.total // 4 + 8))}


def topk(numbers: ModelSizes) -> dict[str, tuple[int, int]]:
    """From each rank 4 bytes of value and 4 of position for a tenth of the values, in one bucket."""
    return {"all_gather": (1, numbers.ranks * 8 * int(0.1 * (numbers.total // 4)))}


def powersgd(rank: int) -> Callable[[ModelSizes], dict[str, tuple[int, int]]]:
    """An n × m matrix as (n + m) × rank values (Vogels, Karimireddy and Jaggi 2019); vectors uncompressed.

    Three all-reduces for each of two buckets: uncompressed values, then one factor, then the other.
    """

    def expected_traffic(numbers: ModelSizes) -> dict[str, tuple[int, int]]:
        sent = [rank * sum(shape) if len(shape) == 2 else sum(shape) for shape in numbers.shapes]
        return {"all_reduce": (6, 4 * sum(sent))}

    return expected_traffic


def searching(numbers: ModelSizes) -> dict[str, tuple[int, int]]:
    """In addition to its two buckets, DDP reduces an int32 for each parameter: whether any rank used it."""
    return {"all_reduce": (3, numbers.total + 4 * len(numbers.parameter_bytes))}


def per_parameter(numbers: ModelSizes) -> dict[str, tuple[int, int]]:
    return {"all_reduce": (len(numbers.parameter_bytes), numbers.total)}


def ring(numbers: ModelSizes) -> dict[str, tuple[int, int]]:
    """2 (n-1) messages each way, 2 (n-1)/n of the bytes (Patarasuk and Yuan 2009), up to an element for each message.

    In either half a rank sends all chunks but one, and receives all but one.
    """
    n, rank, count = numbers.ranks, numbers.rank, numbers.total // numbers.element
    chunk = [numbers.element * (count // n + (i < count % n)) for i in range(n)]
    never_sent, never_received = (rank + 1, rank + 2), (rank, rank + 1)
    both = 2 * numbers.total
    return {
        "send": (2 * (n - 1), both - sum(chunk[i % n] for i in never_sent)),
        "recv": (2 * (n - 1), both - sum(chunk[i % n] for i in never_received)),
    }


def in_pairs(numbers: ModelSizes) -> dict[str, tuple[int, int]]:
    """Within a node of two ranks once there and once back; only the leaders communicate across nodes."""
    whole = (1, numbers.total)
    across = {"all_reduce": whole} if numbers.rank % 2 == 0 else {}
    return {"reduce": whole, **across, "broadcast": whole}


def moe(numbers: ModelSizes) -> dict[str, tuple[int, int | None]]:
    # In each of four blocks: dispatch and combine, and both again in backward. The bytes depend on the router. Gathered
    # are each block's tokens per expert and choice (int64), all-reduced the common gradients.
    pairs = zip(numbers.names, numbers.parameter_bytes, strict=True)
    common = [size for name, size in pairs if ".experts." not in name]
    counts = (4, 4 * numbers.ranks * 2 * 8 * 8)
    return {"all_to_all": (4 * 4, None), "all_gather": counts, "all_reduce": (len(common), sum(common))}
