"""The boundaries of a region of a model that is split over ranks: a collective in forward, its counterpart in backward.

::

    tensor parallel    forward    x ── the same ─────► each rank's share ── all-reduce ─────► y
                       backward   x ◄── all-reduce ─── each rank's share ◄── the same ─────── y

    sequence parallel  forward    x ── all-gather ───► each rank's share ── reduce-scatter ─► y
                       backward   x ◄ reduce-scatter ─ each rank's share ◄── all-gather ───── y

In sequence parallelism x and y are themselves sharded along the second dimension: each rank has some of the tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.profiler import record_function

from dptrace.trainers.parts.communication.collectives import all_gather, reduce_scatter

__all__ = ["Region", "SequenceRegion", "custom_gradient"]


class _CustomGradient(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, x: Tensor, forward_op: Callable[[Tensor], Tensor], backward_op: Callable[[Tensor], Tensor]
    ) -> Tensor:
        context.backward_op = backward_op
        return forward_op(x)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return context.backward_op(gradients[0]), None, None


def custom_gradient(
    x: Tensor, forward_op: Callable[[Tensor], Tensor], backward_op: Callable[[Tensor], Tensor]
) -> Tensor:
    """Apply *forward_op* to the activations in forward, and *backward_op* to their gradients in backward."""
    return _CustomGradient.apply(x, forward_op, backward_op)


def _identity(x: Tensor) -> Tensor:
    return x.view_as(x)


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
        return custom_gradient(x, _identity, self._all_reduce)

    def leave(self, share: Tensor) -> Tensor:
        """Sum the ranks' shares, in place."""
        return custom_gradient(share, self._all_reduce, _identity)

    def _all_reduce(self, x: Tensor) -> Tensor:
        # In place: a linear layer has just computed x, in forward or backward, and nothing else refers to it.
        x = x.contiguous()
        with self._labeled("all_reduce"):
            dist.all_reduce(x, group=self.group)
        return x

    def _labeled(self, what: str) -> record_function:
        return record_function(f"TP::{what} ({self.label})")


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
        with self._labeled("all_gather"):
            all_gather(parts, x.contiguous(), group=self.group)
        return parts.unflatten(0, (self.size, -1)).transpose(0, 1).flatten(1, 2)

    def _scatter(self, x: Tensor) -> Tensor:
        parts = x.unflatten(1, (self.size, -1)).transpose(0, 1).flatten(0, 1)
        tokens: Tensor = parts.new_empty(x.shape[0], *parts.shape[1:])
        with self._labeled("reduce_scatter"):
            reduce_scatter(tokens, parts, group=self.group)
        return tokens
