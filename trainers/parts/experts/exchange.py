"""Rows that travel between ranks in one all-to-all while other work goes on, and their gradients on the way back.

::

    forward    start ── rows travel ──► finish        backward    finish ── gradients travel ──► start
                  └─ anything else ─┘                                 └─ its backward ─┘

Autograd runs the backward of what was computed between the two while the gradients travel: it takes the nodes of its
graph in the opposite order of their creation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import record_function

__all__ = ["ALONE", "Exchange", "Peers"]


@dataclass(frozen=True)
class Peers:
    """The ranks of a group, as one of them sees them; without a group, a rank alone."""

    group: dist.ProcessGroup | None = None
    rank: int = 0
    size: int = 1

    @classmethod
    def of(cls, group: dist.ProcessGroup) -> Peers:
        """Return the ranks of a process group."""
        return cls(group, dist.get_rank(group), dist.get_world_size(group))


ALONE = Peers()


class Exchange:
    """One all-to-all of rows, which has a rank for each part of them, and that of their gradients.

    Args:
        sent, received: how many rows go to each rank, and come from it.
        label: its name in the trace.
    """

    def __init__(self, peers: Peers, sent: list[int], received: list[int], label: str) -> None:
        self.peers, self.label = peers, label
        self.counts = sent, received
        self._work: dist.Work | None = None
        self._rows: tuple[Tensor, Tensor] | None = None
        """Those on their way, which must live as long, and where others arrive."""

    def start(self, rows: Tensor) -> Tensor:
        """Send the rows, and return where others arrive; only :meth:`finish` may read that."""
        buffer: Tensor = _Start.apply(rows, self)
        return buffer

    def finish(self, buffer: Tensor) -> Tensor:
        """Wait for the rows of other ranks, and return them."""
        rows: Tensor = _Finish.apply(buffer, self)
        return rows

    def run(self, rows: Tensor) -> Tensor:
        """Send the rows, and return those of other ranks."""
        return self.finish(self.start(rows))

    def begin(self, rows: Tensor, back: bool = False) -> Tensor:
        """Start the all-to-all, and return where rows arrive."""
        if self.peers.size == 1:
            self._rows = rows, rows
            return rows
        sent, received = self.counts[::-1] if back else self.counts
        rows, buffer = rows.contiguous(), rows.new_empty(sum(received), *rows.shape[1:])
        with record_function(self.label):
            self._work = dist.all_to_all_single(buffer, rows, received, sent, group=self.peers.group, async_op=True)
        self._rows = rows, buffer
        return buffer

    def end(self) -> Tensor:
        """Wait for the all-to-all, and return the rows that have arrived."""
        assert self._rows is not None, "nothing travels"
        if self._work is not None:
            self._work.wait()
        arrived, self._work, self._rows = self._rows[1], None, None
        return arrived


class _Start(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, rows: Tensor, exchange: Exchange) -> Tensor:
        context.exchange = exchange
        buffer = exchange.begin(rows)
        return buffer.view_as(buffer)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return context.exchange.end(), None


class _Finish(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, buffer: Tensor, exchange: Exchange) -> Tensor:
        context.exchange = exchange
        arrived = exchange.end()
        return arrived.view_as(arrived)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        context.exchange.begin(gradients[0], back=True)
        return gradients[0], None  # of the buffer's shape, as autograd wants it; the exchange has the gradients
