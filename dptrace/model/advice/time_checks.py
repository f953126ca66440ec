"""Items about work: batch, accumulation, recomputation, number types, fusion, fewer GPUs, another strategy."""

from __future__ import annotations

import msgspec

from dptrace.core.units import byte_size, plural, share
from dptrace.errors import UsageError
from dptrace.model.advice.check import DDP_PAGE, GOSPEL, GUIDE, PAGE, WORKSHOP, Check, CheckContext, check, span
from dptrace.model.advice.pointwise import pointwise_bytes
from dptrace.model.training.hardware import Gpu
from dptrace.model.training.memory.state import PRECISIONS
from dptrace.model.training.step import predict_step

__all__ = ["TIME_CHECKS"]

_MORE = 4
_AGAIN = "predicted step with it against the one without"


def another_strategy(context: CheckContext) -> Check | None:
    """Compare the plan with the best one, if the plan was given."""
    if not context.found:
        return None
    best = context.found[0]
    reason = (
        f"{best.label} with micro-batches of {best.plan.micro_batch}, recompute {best.plan.recompute}, takes "
        f"{span(best.step.step_s)} and {byte_size(best.memory_bytes)} on each GPU"
    )
    same = best.plan == context.plan
    return check(
        context, "strategy", f"Spread it as {best.label}", reason if not same else "this is the best plan found",
        _AGAIN, "see the candidates", f"{GUIDE}, 12.5", gain_s=context.step_s - best.step.step_s,
        gain_bytes=context.now.memory_bytes - best.memory_bytes, skip=same or not best.fits,
    )  # fmt: skip


def larger_batch(context: CheckContext) -> Check:
    """Double the samples, in larger micro-batches where they fit."""
    other = context.best(msgspec.structs.replace(context.plan, batch=2 * context.plan.batch))
    gain, exposed = context.step_s - other.step.step_s / 2, other.step.exposed_s / other.step.step_s
    reason = (
        f"{2 * context.plan.batch:,} samples in micro-batches of {other.plan.micro_batch}: "
        f"{span(other.step.step_s / 2)} for the samples of one step, exposed communication {share(exposed)} of it"
    )
    return check(
        context, "larger-batch", "Double the batch", reason, f"{_AGAIN}, for the same samples",
        f"--batch {2 * context.plan.batch}; adapt the learning rate", f"{GUIDE}, 6.6; {WORKSHOP}, chart 1",
        gain_s=gain, gain_bytes=context.now.memory_bytes - other.memory_bytes,
    )  # fmt: skip


def accumulate(context: CheckContext) -> Check:
    """Reduce gradients once for several times the samples, without more memory."""
    other = context.changed(batch=_MORE * context.plan.batch)
    gain = context.step_s - other.step.step_s / _MORE
    reason = (
        f"gradients, optimizer and bubble once for {_MORE} times the samples: {span(other.step.step_s / _MORE)} for "
        "those of one step"
    )
    do = "with model.no_sync(): all but the last backward of a step (FSDP2: set_requires_gradient_sync)"
    return check(
        context, "accumulate", f"Accumulate gradients over {_MORE} times the samples", reason,
        f"{_AGAIN}, for the same samples", do, f"{PAGE}, 'levers'; {GOSPEL}, gradient_accumulation_steps=4",
        gain_s=gain,
    )  # fmt: skip


def micro_batch(context: CheckContext) -> Check:
    """Compute other sizes at once, with other recomputation where it is open."""
    other = context.best(context.plan, context.any_recompute())
    reason = (
        f"micro-batches of {other.plan.micro_batch}, recompute {other.plan.recompute}: {span(other.step.step_s)}, "
        f"{byte_size(other.memory_bytes)} on each GPU"
    )
    same = (other.plan.micro_batch, other.plan.recompute) == (context.plan.micro_batch, context.plan.recompute)
    return check(
        context, "micro-batch", f"Compute {plural(other.plan.micro_batch, 'sample')} at once, "
        f"recompute {other.plan.recompute}",
        f"{reason}: the best" if same else reason, _AGAIN,
        f"--micro-batch {other.plan.micro_batch} --recompute {other.plan.recompute}", f"{GUIDE}, 6.6",
        gain_s=context.step_s - other.step.step_s, gain_bytes=context.now.memory_bytes - other.memory_bytes,
        skip=same or not other.fits,
    )  # fmt: skip


def mixed_precision(context: CheckContext) -> Check:
    """Compute in bfloat16, or in float8 where the GPU has it."""
    plan, before = context.plan, context.plan.precision
    wider = before in ("fp32", "tf32", "amp")
    target = _sixteen_bits(plan.gpu) if wider else "fp8"
    source = f"{GUIDE}, 7.6 and 12.5; {GOSPEL}, use_mixed_precision"
    do = (
        "torch.autocast('cuda', torch.bfloat16), or FSDP's MixedPrecisionPolicy"
        if wider
        else "torchao's float8 training"
    )
    if before == "fp8" or PRECISIONS[target].compute not in plan.gpu.peaks.tflops:
        return check(
            context, "mixed-precision", f"Compute in {target}",
            f"{before} is the narrowest that the {plan.gpu.name} has", _AGAIN, do, source, skip=True,
        )  # fmt: skip
    other = context.best(msgspec.structs.replace(plan, precision=target), context.any_recompute())
    rate = plan.gpu.peak(PRECISIONS[target].compute) / plan.gpu.peak(PRECISIONS[before].compute)
    reason = (
        f"products have {rate:.3g} times the peak: {span(other.step.step_s)} a step, {byte_size(other.memory_bytes)} "
        "on each GPU"
    )
    return check(
        context, "mixed-precision", f"Compute in {target} instead of {before}", reason, _AGAIN, do, source,
        gain_s=context.step_s - other.step.step_s, gain_bytes=context.now.memory_bytes - other.memory_bytes,
    )  # fmt: skip


def _sixteen_bits(gpu: Gpu) -> str:
    return "bf16" if "bf16" in gpu.peaks.tflops else "fp16"


def compiled(context: CheckContext) -> Check:
    """Fuse what is neither a product nor attention: each intermediate result is not written and read again."""
    plan = context.plan
    saved = pointwise_bytes(plan, fused=False) - pointwise_bytes(plan, fused=True)
    rate = plan.gpu.memory_bytes_per_s
    reason = f"{byte_size(saved)} that a GPU would not write and read again in a step, at {rate / 1e12:.3g} TB/s"
    computed = (
        "bytes of elementwise operators at the memory's bandwidth; at least, for kernels without launch gaps. The "
        "plan's step is that of fused kernels; torchtitan measured +16 % tokens/s for Llama 3 8B"
    )
    return check(
        context, "compile", "Fuse elementwise operators with torch.compile", reason, computed,
        "model = torch.compile(model), or block by block", f"{GUIDE}, 6.6 (operator fusion)",
        gain_s=saved / plan.gpu.memory_bytes_per_s, keep=True,
    )  # fmt: skip


def fewer_gpus(context: CheckContext) -> Check:
    """Ask whether half as many GPUs would be as fast, or faster."""
    plan, layout = context.plan, context.layout
    what, source = "Use fewer GPUs", f"{WORKSHOP}, chart 1: 1.5 million parameters are slower on 4 GPUs than on 1"
    found = []
    data = layout.data // 2
    while data and layout.data % data == 0 and data >= layout.expert:
        shards = min(layout.shards, data)
        fewer = msgspec.structs.replace(plan, layout=msgspec.structs.replace(layout, data=data, shards=shards))
        try:
            fewer.check()
        except UsageError:
            break
        found.append((predict_step(fewer).step_s, fewer))
        data //= 2
    if not found:
        reason = f"{layout.gpus} GPUs hold one copy of the model"
        return check(context, "fewer-gpus", what, reason, _AGAIN, "--gpus", source, skip=True)
    seconds, best = min(found, key=lambda pair: pair[0])
    half = found[0][0]
    reason = (
        f"twice the GPUs are {half / context.step_s:.2f} times as fast for the same batch (from "
        f"{found[0][1].layout.gpus} to {layout.gpus}), an efficiency of "
        f"{share(half / context.step_s / 2)}; the goal is 70 % ({DDP_PAGE})"
    )
    return check(
        context, "fewer-gpus", what, reason, "predicted step on fewer GPUs, with the same batch",
        f"--gpus {best.layout.gpus}", source, gain_s=context.step_s - seconds,
        skip=seconds >= context.step_s or not best.fits,
    )  # fmt: skip


TIME_CHECKS = (another_strategy, larger_batch, accumulate, micro_batch, mixed_precision, compiled, fewer_gpus)
