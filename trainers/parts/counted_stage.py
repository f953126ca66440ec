"""torch's stage of a pipeline, with labels in the trace and a count of the activations that it holds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.distributed.pipelining import PipelineStage
from torch.profiler import record_function

# How many micro-batches' activations a rank of a pipeline holds at once, and the bytes that they take.
#
# ::
#
#     GPipe    F0 F1 F2 F3 B0 B1 B2 B3     holds 4
#     1F1B     F0 F1 B0 F2 B1 F3 B2 B3     holds 2


_Key = tuple[int, int]
"""Numbers of a stage and of a micro-batch."""


class InFlight:
    """Counts the activations of one step between the forward and the backward of each micro-batch.

    Args:
        parameters: the rank's parameters, which autograd keeps as well; they are no activations.
        in_bytes: whether to measure bytes, too: each tensor that autograd keeps then passes through Python.

    Attributes:
        peak: the most micro-batches held at once; one counts once for each of the rank's stages.
        peak_bytes: the most bytes that autograd kept for their backward; a storage counts once for a micro-batch.
    """

    def __init__(self, parameters: Iterable[Tensor], in_bytes: bool = True) -> None:
        self.in_bytes, self.open = in_bytes, True
        self.peak = self.peak_bytes = 0
        self._own = {parameter.untyped_storage().data_ptr() for parameter in parameters}
        self._held: dict[_Key, dict[int, dict[int, int]]] = {}
        self._latest: _Key | None = None

    @contextmanager
    def forward(self, stage: int, micro_batch: int) -> Iterator[None]:
        """Count the forward inside."""
        if self.open:
            self._latest = stage, micro_batch
            self._held[self._latest] = defaultdict(dict)
        with self.more():
            yield

    @contextmanager
    def more(self) -> Iterator[None]:
        """Count what is inside as a part of the latest forward: the loss of its output."""
        kept = self._held.get(self._latest) if self._latest is not None else None
        if kept is None:
            yield
            return
        if not self.in_bytes:
            yield
        else:
            with saved_tensors_hooks(lambda tensor: self._keep(kept, tensor), lambda tensor: tensor):
                yield
        self.peak = max(self.peak, len(self._held))
        self.peak_bytes = max(self.peak_bytes, sum(map(_size, self._held.values())))

    def backward(self, stage: int, micro_batch: int) -> None:
        """Release what the forward of this micro-batch has kept."""
        self._held.pop((stage, micro_batch), None)

    def close(self) -> None:
        """End the step: count no more."""
        self.open, self._latest = False, None
        self._held.clear()

    def _keep(self, kept: dict[int, dict[int, int]], tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._own:
            size = min(tensor.numel() * tensor.element_size(), storage.nbytes())
            parts = kept[storage.data_ptr()]
            parts[tensor.data_ptr()] = max(parts.get(tensor.data_ptr(), 0), size)
        return tensor


def _size(kept: dict[int, dict[int, int]]) -> int:
    """Return the bytes of a micro-batch: of each storage the parts that are kept, each once."""
    return sum(sum(parts.values()) for parts in kept.values())


class CountedStage(PipelineStage):
    """A stage that counts the activations in flight, for a loss that is already divided by the micro-batches."""

    in_flight: InFlight
    in_last_backward = False
    """Whether the latest backward is that of the last micro-batch, so that the gradients are complete after it."""
    micro_batch_offset = 0
    """Micro-batches of this step that were done before those of the schedule."""

    def scale_grads(self, grad_scale_factor: int) -> None:
        """Leave the gradients as they are, which may be on their way to other ranks."""

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run the forward of one micro-batch."""
        with self.in_flight.forward(self.stage_index, fwd_chunk_id):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run the backward of one micro-batch, or the part of it that another stage waits for."""
        self.in_last_backward = kwargs.get("last_backward", False)
        super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
        if kwargs.get("full_backward", True):
            self.in_flight.backward(self.stage_index, bwd_chunk_id)

    def backward_weight_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run the rest of the backward of one micro-batch."""
        super().backward_weight_one_chunk(bwd_chunk_id, *args, **kwargs)
        self.in_flight.backward(self.stage_index, bwd_chunk_id)


class NamedStage(CountedStage):
    """A stage that labels its work as torch's newer schedules do: ``PP:0F3`` is stage 0's forward of micro-batch 3.

    GPipe's own labels do not contain the stage, and 1F1B has no labels.
    """

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run the forward of one micro-batch."""
        with record_function(f"PP:{self.stage_index}F{self.micro_batch_offset + fwd_chunk_id}"):
            return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        """Run the backward of one micro-batch."""
        with record_function(f"PP:{self.stage_index}B{self.micro_batch_offset + bwd_chunk_id}"):
            return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)
