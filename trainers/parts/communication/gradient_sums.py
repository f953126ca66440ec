"""All-reduces of gradients that start while backward goes on with other layers."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch.distributed as dist
from torch import Tensor
from torch.profiler import record_function

__all__ = ["GradientSums"]


class GradientSums:
    """Sums gradients over ranks as soon as they are ready.

    Args:
        complete: says, when a gradient is ready, whether it is that of the whole step, and not of some micro-batches.
    """

    def __init__(self, complete: Callable[[], bool]) -> None:
        self.complete = complete
        self._pending: list[dist.Work] = []

    def add(self, parameters: Iterable[tuple[str, Tensor]], group: dist.ProcessGroup | None) -> None:
        """Sum the gradients of these parameters, by their names, over the ranks of a group, if it has several."""
        if dist.get_world_size(group) == 1:
            return
        for name, parameter in parameters:
            label = f"DP::all_reduce ({name})"  # its name in the trace

            def start(ready: Tensor, label: str = label) -> None:
                if self.complete():
                    with record_function(label):
                        self._pending.append(dist.all_reduce(ready.grad, group=group, async_op=True))

            parameter.register_post_accumulate_grad_hook(start)

    def wait(self) -> None:
        """Wait until all sums are complete."""
        while self._pending:
            self._pending.pop().wait()
