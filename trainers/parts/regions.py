"""Where a part of a model that ranks share out begins and ends: a collective forward there, its counterpart backward.

::

    tensor parallel    forward    x ── the same ─────► each rank's share ── all-reduce ─────► y
                       backward   x ◄── all-reduce ─── each rank's share ◄── the same ─────── y

    sequence parallel  forward    x ── all-gather ───► each rank's share ── reduce-scatter ─► y
                       backward   x ◄ reduce-scatter ─ each rank's share ◄── all-gather ───── y

In sequence parallelism x and y are shards themselves, of the second dimension: each rank has some of the tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.profiler import record_function

from dptrace.trainers.parts.shards import all_gather, reduce_scatter

__all__ = ["Region", "SequenceRegion"]


class _CustomGradient(torch.autograd.Function):
    """One function of the activations forward, another of their gradients backward."""

    @staticmethod
    def forward(
        context: Any, x: Tensor, forward_op: Callable[[Tensor], Tensor], backward_op: Callable[[Tensor], Tensor]
    ) -> Tensor:
        context.backward_op = backward_op
        return forward_op(x)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return context.backward_op(gradients[0]), None, None


def _apply(x: Tensor, forward_op: Callable[[Tensor], Tensor], backward_op: Callable[[Tensor], Tensor]) -> Tensor:
    output: Tensor = _CustomGradient.apply(x, forward_op, backward_op)
    return output


def _identity(x: Tensor) -> Tensor:
    return x.view_as(x)


class Region:
    """A part whose ranks all see the same input, and compute shares of which the output is the sum.

    Args:
        label: the part's name, for the trace.
    """

    def __init__(self, group: dist.ProcessGroup, label: str) -> None:
        self.group, self.label = group, label
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def attach(self, module: nn.Module) -> None:
        """Let the part begin where *module* does."""
        module.register_forward_pre_hook(lambda _, inputs: (self.enter(inputs[0]),))

    def enter(self, x: Tensor) -> Tensor:
        """Give x to the ranks' shares; its gradient is the sum of theirs."""
        return _apply(x, _identity, self._all_reduce)

    def leave(self, share: Tensor) -> Tensor:
        """Add up the ranks' shares, in the place of this one's."""
        return _apply(share, self._all_reduce, _identity)

    def _all_reduce(self, x: Tensor) -> Tensor:
        # In place: this is what a linear layer has just computed, forward or backward, and nothing else holds it.
        x = x.contiguous()
        with self._labelled("all_reduce"):
            dist.all_reduce(x, group=self.group)
        return x

    def _labelled(self, what: str) -> record_function:
        return record_function(f"TP::{what} ({self.label})")


class SequenceRegion(Region):
    """The same, where outside of the part each rank has its share of the tokens only."""

    def enter(self, x: Tensor) -> Tensor:
        """Gather all tokens; each token's gradient is the sum of what the ranks' shares made of it."""
        return _apply(x, self._gather, self._scatter)

    def leave(self, share: Tensor) -> Tensor:
        """Add up the ranks' shares, and keep this rank's tokens."""
        return _apply(share, self._scatter, self._gather)

    def split_tokens(self, x: Tensor) -> Tensor:
        """Keep this rank's tokens of what all ranks have."""
        return _apply(x, self._own, self._gather)

    def gather_tokens(self, x: Tensor) -> Tensor:
        """Gather all tokens for what all ranks compute alike, and so with the same gradient."""
        return _apply(x, self._gather, self._own)

    def _own(self, x: Tensor) -> Tensor:
        own: Tensor = x.chunk(self.size, 1)[self.rank].contiguous()
        return own

    def _gather(self, x: Tensor) -> Tensor:
        parts = x.new_empty(self.size * x.shape[0], *x.shape[1:])
        with self._labelled("all_gather"):
            all_gather(parts, x.contiguous(), group=self.group)
        whole: Tensor = parts.unflatten(0, (self.size, -1)).transpose(0, 1).flatten(1, 2)
        return whole

    def _scatter(self, x: Tensor) -> Tensor:
        parts = x.unflatten(1, (self.size, -1)).transpose(0, 1).flatten(0, 1)
        own: Tensor = parts.new_empty(x.shape[0], *parts.shape[1:])
        with self._labelled("reduce_scatter"):
            reduce_scatter(own, parts, group=self.group)
        return own
