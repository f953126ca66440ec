"""The time of a training step: computation, bubble, optimizer, and the communication that nothing hides."""

from __future__ import annotations

import msgspec

from dptrace.model.training.compute import matmul_share
from dptrace.model.training.flops import forward_flops, hardware_flops, model_flops
from dptrace.model.training.memory.state import PRECISIONS
from dptrace.model.training.pipeline import bubble_share
from dptrace.model.training.plan import Plan
from dptrace.model.training.traffic import Traffic, traffic

__all__ = ["TARGETS", "StepPrediction", "Target", "predict_step", "targets"]


class StepPrediction(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a step, in seconds of one GPU."""

    compute_s: float
    share: float
    """Share of the GPU's peak that the computation is assumed to reach by itself."""
    bubble_s: float
    optimizer_s: float
    communication_s: float
    """All communication, hidden or not."""
    exposed_s: float
    """What of it neither forward nor backward can hide."""
    step_s: float
    """computation + bubble + optimizer + exposed communication."""
    serial_s: float
    """The step if nothing overlapped."""
    ideal_s: float
    """The step if communication and computation overlapped wholly: the longer of the two counts."""
    model_flops: float
    peak_flops: float
    """Of all GPUs together."""
    samples: int
    tokens: int
    traffic: tuple[Traffic, ...]

    @property
    def samples_per_s(self) -> float:
        """Return samples in a second, over all GPUs."""
        return self.samples / self.step_s

    @property
    def tokens_per_s(self) -> float:
        """Return tokens in a second, over all GPUs."""
        return self.tokens / self.step_s

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization: the operations that training needs over what the GPUs could do in a step."""
        return self.model_flops / (self.peak_flops * self.step_s)

    @property
    def ideal_exposed_s(self) -> float:
        """Return the exposed communication if it overlapped wholly: what exceeds the computation."""
        return max(0.0, self.communication_s - self.compute_s)

    @property
    def bubble(self) -> float:
        """Return the bubble's share of the step."""
        return self.bubble_s / self.step_s

    @property
    def overlap(self) -> float | None:
        """Return the share of the communication that is hidden; None without communication."""
        return 1 - self.exposed_s / self.communication_s if self.communication_s else None

    @property
    def efficiency(self) -> float:
        """Return the share of the step in which the GPU computes."""
        return self.compute_s / self.step_s


def predict_step(plan: Plan) -> StepPrediction:
    """Compute the parts of a step."""
    layout = plan.layout
    number_type = PRECISIONS[plan.precision].compute
    share = plan.share or matmul_share(plan.gpu, plan.shape, layout.tensor, plan.micro_batch, number_type)
    peak = plan.gpu.peak(number_type)
    rate = layout.gpus * peak * share / plan.balance
    compute = hardware_flops(plan.shape, plan.batch, plan.recompute, plan.recomputed_share) / rate
    forward = forward_flops(plan.shape) * plan.batch * plan.shape.sequence / rate
    messages = traffic(plan)
    blocking = sum(one.seconds for one in messages if not one.hides)
    updates = sum(one.seconds for one in messages if one.what == "updated parameters")
    in_pipeline = compute + blocking - updates
    bubble = bubble_share(layout.schedule, layout.stages, plan.micro_batches, layout.virtual_stages) or 0.0
    bubble_s = in_pipeline * bubble / (1 - bubble)
    exposed = blocking + _not_hidden(plan, messages, forward, compute - forward)
    communication = sum(one.seconds for one in messages)
    optimizer = _optimizer_seconds(plan)
    base = compute + bubble_s + optimizer
    return StepPrediction(
        compute_s=compute,
        share=share,
        bubble_s=bubble_s,
        optimizer_s=optimizer,
        communication_s=communication,
        exposed_s=exposed,
        step_s=base + exposed,
        serial_s=base + communication,
        ideal_s=max(compute, communication) + bubble_s + optimizer,
        model_flops=model_flops(plan.shape, plan.batch),
        peak_flops=peak * layout.gpus,
        samples=plan.batch,
        tokens=plan.batch * plan.shape.sequence,
        traffic=messages,
    )


def _not_hidden(plan: Plan, messages: tuple[Traffic, ...], forward_s: float, backward_s: float) -> float:
    """Return the part of the overlapping communication that exceeds what it runs under.

    What happens in every micro-batch has all of forward or backward to hide in, gradients of the whole step only the
    backward of the last micro-batch. At least the ends are exposed: the last bucket of gradients, and of sharded
    parameters the gather of the first layer and the reduce-scatter of the last one.
    """
    exposed = least = 0.0
    for phase, seconds in (("forward", forward_s), ("backward", backward_s)):
        under = [one for one in messages if one.hides == phase]
        every = sum(one.seconds for one in under if one.every_micro_batch)
        once = sum(one.seconds for one in under if not one.every_micro_batch)
        hidden = every if every < seconds else seconds
        room = min(seconds - hidden, seconds / plan.micro_batches)
        exposed += (every - hidden) + max(once - room, 0.0)
        least += sum(_end_seconds(plan, one) for one in under)
    return max(exposed, least)


def _end_seconds(plan: Plan, one: Traffic) -> float:
    if one.what == "parameters (backward)":
        return 0.0  # the last layer, which backward begins with, is gathered in forward
    return one.call_s * (plan.micro_batches if one.every_micro_batch else 1)


def _optimizer_seconds(plan: Plan) -> float:
    """Return the time to read and write the state once, which memory bandwidth limits."""
    held = plan.memory.state
    touched = held.parameters + held.gradients + 2 * held.optimizer
    if plan.layout.zero in (1, 2):  # only the shard that this GPU updates
        gradients = held.gradients / (plan.layout.shards if plan.layout.zero == 1 else 1)
        touched = held.parameters / plan.layout.shards + gradients + 2 * held.optimizer
    return touched / plan.gpu.memory_bytes_per_s


class Target(msgspec.Struct, frozen=True):
    """A goal of the guide "Distributed Training" (section 12.5), and whether a step reaches it."""

    name: str
    goal: str
    value: float | None
    met: bool | None


TARGETS = (("mfu", "> 40 %", 0.4), ("bubble", "< 10 %", 0.1), ("overlap", "> 80 %", 0.8))


def targets(step: StepPrediction) -> tuple[Target, ...]:
    """Return the goals for the MFU, the bubble and the overlap."""
    found = []
    for name, goal, limit in TARGETS:
        value = getattr(step, name)
        met = None if value is None else (value < limit if name == "bubble" else value > limit)
        found.append(Target(name, goal, value, met))
    return tuple(found)
