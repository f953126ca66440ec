"""torch's stage of a pipeline, with labels in the trace and a count of the activations that it holds."""

from __future__ import annotations

from typing import Any

from torch.distributed.pipelining import PipelineStage
from torch.profiler import record_function

from dptrace.trainers.parts.pipelines.in_flight import InFlight

__all__ = ["CountedStage", "NamedStage"]


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
