"""A model whose pairs of linear layers are split over the ranks of a group, as in Megatron-LM.

::

    x ─► columns: some of the outputs ─► ReLU, or attention of some heads ─► rows: from some of the inputs ─► sum ─► y

The first layer of a pair is split by its outputs, the second by its inputs, so that the computation between them needs
no communication. All other layers are the same on every rank.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.profiler import record_function

from dptrace.record.distributed import check_finite
from dptrace.trainers.parts import models
from dptrace.trainers.parts.collectives import all_gather, custom_gradient, reduce_scatter, unchanged

# The boundaries of a region of a model that is split over ranks: a collective in forward, its counterpart in backward.
#
# ::
#
#     tensor parallel    forward    x ── the same ─────► each rank's share ── all-reduce ─────► y
#                        backward   x ◄── all-reduce ─── each rank's share ◄── the same ─────── y
#
#     sequence parallel  forward    x ── all-gather ───► each rank's share ── reduce-scatter ─► y
#                        backward   x ◄ reduce-scatter ─ each rank's share ◄── all-gather ───── y
#
# In sequence parallelism x and y are themselves sharded along the second dimension: each rank has some of the tokens.


class Region:
    """A region whose ranks all have the same input and compute shares whose sum is the output.

    Args:
        label: the region's name, for the trace.
    """

    def __init__(self, group: dist.ProcessGroup, label: str) -> None:
        self.group, self.label = group, label
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def attach(self, module: nn.Module) -> None:
        """Enter the region before the forward of *module*."""
        module.register_forward_pre_hook(lambda _, inputs: (self.enter(inputs[0]),))

    def enter(self, x: Tensor) -> Tensor:
        """Pass x to this rank's share; its gradient is the sum over the ranks."""
        return custom_gradient(x, unchanged, self._all_reduce)

    def leave(self, share: Tensor) -> Tensor:
        """Sum the ranks' shares, in place."""
        return custom_gradient(share, self._all_reduce, unchanged)

    def _all_reduce(self, x: Tensor) -> Tensor:
        # In place: a linear layer has just computed x, in forward or backward, and nothing else refers to it.
        x = x.contiguous()
        with record_function(f"TP::all_reduce ({self.label})"):
            dist.all_reduce(x, group=self.group)
        return x


class SequenceRegion(Region):
    """A region outside of which each rank has only its own tokens."""

    def enter(self, x: Tensor) -> Tensor:
        """Gather all tokens; the gradient of a token is the sum over the ranks."""
        return custom_gradient(x, self._gather, self._scatter)

    def leave(self, share: Tensor) -> Tensor:
        """Sum the ranks' shares and keep this rank's tokens."""
        return custom_gradient(share, self._scatter, self._gather)

    def split_tokens(self, x: Tensor) -> Tensor:
        """Keep this rank's tokens of an x that is the same on all ranks."""
        return custom_gradient(x, self._own_tokens, self._gather)

    def gather_tokens(self, x: Tensor) -> Tensor:
        """Gather all tokens for layers that all ranks compute identically, so that their gradients are equal."""
        return custom_gradient(x, self._gather, self._own_tokens)

    def _own_tokens(self, x: Tensor) -> Tensor:
        return x.chunk(self.size, 1)[self.rank].contiguous()

    def _gather(self, x: Tensor) -> Tensor:
        parts = x.new_empty(self.size * x.shape[0], *x.shape[1:])
        with record_function(f"TP::all_gather ({self.label})"):
            all_gather(parts, x.contiguous(), group=self.group)
        return parts.unflatten(0, (self.size, -1)).transpose(0, 1).flatten(1, 2)

    def _scatter(self, x: Tensor) -> Tensor:
        parts = x.unflatten(1, (self.size, -1)).transpose(0, 1).flatten(0, 1)
        tokens: Tensor = parts.new_empty(x.shape[0], *parts.shape[1:])
        with record_function(f"TP::reduce_scatter ({self.label})"):
            reduce_scatter(tokens, parts, group=self.group)
        return tokens


class ColumnParallelLinear(nn.Module):
    """A linear layer of which this rank computes some of the outputs: columns of W in y = xW."""

    sharded_dims: ClassVar = {"weight": 0, "bias": 0}
    """Dimension along which each parameter is split."""

    def __init__(self, layer: nn.Linear, region: Region) -> None:
        super().__init__()
        self.weight, self.bias = _shard(layer.weight, 0, region), _shard(layer.bias, 0, region)

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


class RowParallelLinear(nn.Module):
    """A linear layer of which this rank has some of the inputs: rows of W in y = xW. The ranks' outputs are summed."""

    sharded_dims: ClassVar = {"weight": 1}

    def __init__(self, layer: nn.Linear, region: Region) -> None:
        super().__init__()
        self.region, self.weight, self.bias = region, _shard(layer.weight, 1, region), layer.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.region.leave(linear(x, self.weight)) + self.bias


def _shard(parameter: Tensor, dimension: int, region: Region) -> nn.Parameter:
    return nn.Parameter(parameter.detach().chunk(region.size, dimension)[region.rank].clone())


class TensorParallel:
    """Splits a model over the ranks of a group and gathers its parameters.

    Args:
        group: the ranks that share the model.
        sequence: whether to split the tokens as well, outside of the split layers (sequence parallelism; decoders
            only).

    Attributes:
        sharded_dims: the split parameters by name, with the dimension along which each is split.
        partial: parameters that all ranks hold, but whose gradients cover only this rank's tokens.
        parameters: the number of values in the whole model.
    """

    def __init__(self, group: dist.ProcessGroup, sequence: bool = False) -> None:
        self.group, self.size = group, dist.get_world_size(group)
        self.region_type = SequenceRegion if sequence else Region
        self.sharded_dims: dict[str, int] = {}
        self.partial = nn.ParameterList()
        self.parameters = 0

    def split(self, model: nn.Sequential) -> None:
        """Replace each pair of layers, in place, by this rank's share of it."""
        self.parameters = sum(parameter.numel() for parameter in model.parameters())
        for name, block in model.named_children():
            if isinstance(block, models.Block):
                self._parallelize_pair(block.attention, ["query", "key", "value"], "out", f"{name}.attention")
                for inner, layer in list(block.named_modules()):  # one MLP, or one for each expert
                    if isinstance(layer, models.FeedForward):
                        self._parallelize_pair(layer, ["up"], "down", f"{name}.{inner}")
            elif isinstance(block, models.MlpBlock):
                self._parallelize_pair(block, ["up"], "down", name)
        layers = [name for name, layer in model.named_children() if isinstance(layer, nn.Linear)]
        for first, second in zip(layers[::2], layers[1::2], strict=False):
            self._parallelize_pair(model, [first], second, f"{first}+{second}")
        if self.region_type is SequenceRegion:
            self._split_tokens(model)
        for prefix, module in model.named_modules():
            sharded_dims = module.sharded_dims if isinstance(module, (ColumnParallelLinear, RowParallelLinear)) else {}
            self.sharded_dims |= {f"{prefix}.{name}": dimension for name, dimension in sharded_dims.items()}

    def _parallelize_pair(self, holder: nn.Module, columns: list[str], rows: str, label: str) -> None:
        region = self.region_type(self.group, label)
        for name in columns:
            setattr(holder, name, ColumnParallelLinear(getattr(holder, name), region))
        setattr(holder, rows, RowParallelLinear(getattr(holder, rows), region))
        region.attach(holder if len(columns) > 1 else holder.get_submodule(columns[0]))

    def _split_tokens(self, model: nn.Sequential) -> None:
        """Split the tokens over the ranks, from the embedding to the head."""
        embedding, *blocks, head = model
        tokens = SequenceRegion(self.group, "tokens")
        embedding.register_forward_hook(lambda module, inputs, output: tokens.split_tokens(output))
        head.register_forward_pre_hook(lambda module, inputs: (tokens.gather_tokens(inputs[0]),))
        for layer in (layer for block in blocks for layer in block.modules()):
            if isinstance(layer, nn.LayerNorm):
                self.partial.extend([layer.weight, layer.bias])
            elif isinstance(layer, RowParallelLinear):
                self.partial.append(layer.bias)

    def replica_counts(self, model: nn.Module, replicas: int = 1) -> dict[Tensor, int]:
        """Return how many ranks hold each parameter, in a mesh with *replicas* copies of the split model."""
        return {p: replicas * (1 if name in self.sharded_dims else self.size) for name, p in model.named_parameters()}

    def full_parameters(self, parameters: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
        """Gather the split parameters; all ranks of the group must call this.

        Raises:
            RecordingError: a parameter is no longer finite.
        """
        gathered = {name: parameter.detach() for name, parameter in parameters}
        for name, dimension in self.sharded_dims.items():
            parts = [torch.empty_like(gathered[name]) for _ in range(self.size)]
            dist.all_gather(parts, gathered[name].contiguous(), group=self.group)
            gathered[name] = torch.cat(parts, dimension)
            check_finite(name, not torch.isfinite(gathered[name]).all())
        return gathered
