"""Items of the checklists that a recording answers without a replay: its findings, its options, its split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import TYPE_CHECKING, Any

from dptrace.analysis.findings.finding import by_gain
from dptrace.core.units import byte_size, duration, share
from dptrace.model.planning.candidates import DDP_PAGE, GOSPEL, GUIDE, LEAST_SHARE, PAGE, Check
from dptrace.record.options.modes import REPLICATED
from dptrace.replay.advice.recorded_questions import RecordedStep

if TYPE_CHECKING:
    from dptrace.run.run import Run

__all__ = ["finding_checks", "option_checks", "step_checks"]

_FROM_FINDINGS = "gain of the finding, or its cost where that is unknown; dptrace analyze"
_ITEMS = {
    "data_loading": ("num_workers", f"{GUIDE}, 7.6; {GOSPEL}, DataLoader"),
    "copies": ("pin_memory", f"{GUIDE}, 7.6; {GOSPEL}, DataLoader"),
    "pageable_copies": ("pin_memory", f"{GUIDE}, 7.6; {GOSPEL}, DataLoader"),
    "unused_parameters": ("find_unused_parameters", f"{DDP_PAGE}, 'Practical knobs'"),
    "small_messages": ("small-messages", f"{GUIDE}, 5.4: batch small messages"),
    "bubble": ("micro-batches", f"{GUIDE}, 10.8"),
    "recompute": ("checkpoint-activations", f"{GUIDE}, 1.2"),
    "straggler": ("straggler", f"{PAGE}, 'Where the field is now'"),
    "synchronizing": ("synchronizing", f"{GOSPEL}, training_step: loss.item() in each step"),
}
"""Item and source of a kind of finding; others have their own names."""


def finding_checks(run: Run) -> list[Check]:
    """Return the findings as items, those on compute of a GPU too; of two with one name, the one with the greater gain.

    Args:
        run: one whose findings have gains, if they shall agree with ``dptrace analyze``.
    """
    from dptrace.run.kernels import compute_findings_of

    found = list(run.cross_rank.findings)
    if not (run.figures_only or run.on_cpu):
        found += compute_findings_of(run)
    checks: dict[str, Check] = {}
    for one in (finding for finding in by_gain(found) if not finding.is_minor):
        gain, part = one.figure
        name, source = _ITEMS.get(one.kind, (one.kind.replace("_", "-"), f"{GUIDE}, 13: profile, measure, iterate"))
        checks.setdefault(
            name,
            Check(
                name=name,
                what=one.advice,
                status="apply",
                reason=one.text,
                gain_s=gain / 1e9,
                gain_share=part,
                computed=_FROM_FINDINGS,
                do="dptrace analyze RUN shows where",
                source=source,
            ),
        )
    return list(checks.values())


def _item(name: str, what: str, reason: str, computed: str, do: str, source: str, **gains: Any) -> Check:
    return Check(name=name, what=what, reason=reason, computed=computed, do=do, source=source, **gains)


def step_checks(run: Run, step: RecordedStep) -> Iterator[Check]:
    """Yield the items that the parts of the mean step answer."""
    once = step.optimizer_ns + step.transfer_ns
    gain = once / 2
    part = gain / step.wall_ns
    yield _item(
        "larger-batch",
        "Double the batch",
        f"the optimizer and exposed communication, {duration(once)}, once for twice the samples",
        "half of both, for the same samples; the rest grows with the samples",
        "a larger batch, if memory and the learning rate allow",
        f"{GUIDE}, 6.6; {DDP_PAGE}",
        status="apply" if part >= LEAST_SHARE else "skip",
        gain_s=gain / 1e9,
        gain_share=part,
    )
    if not step.data_loading_ns:
        reason = "no step waits for the DataLoader"
        yield _item(
            "num_workers", "Load samples in more workers", reason, "idle time of the step", "DataLoader(num_workers=4)",
            f"{GUIDE}, 7.6", status="skip", gain_s=0.0, gain_share=0.0,
        )  # fmt: skip
    part = step.memory_ns / step.wall_ns
    yield _item(
        "pin_memory", "Pin the memory that samples are copied from",
        f"{duration(step.memory_ns)} of exposed copies in a step",
        "exposed copies of the step", "DataLoader(pin_memory=True); batch.cuda(non_blocking=True)", f"{GUIDE}, 7.6",
        status="apply" if part >= LEAST_SHARE else "skip", gain_s=step.memory_ns / 1e9, gain_share=part,
    )  # fmt: skip


def option_checks(run: Run, step: RecordedStep) -> Iterator[Check]:
    """Yield the items that DDP's options and the memory of the ranks answer."""
    ddp = run.metadata.get("ddp")
    if isinstance(ddp, Mapping):
        yield _bucket_view(ddp)
        yield _unused(ddp)
        yield _broadcasts(run, step, ddp)
    yield from _shard_optimizer(run)
    yield from _precision(run)


def _bucket_view(ddp: Mapping[str, Any]) -> Check:
    size = ddp.get("total_parameter_size_bytes")
    size = size if isinstance(size, int) else None
    on = bool(ddp.get("gradient_as_bucket_view"))
    held = "a second copy of the gradients" + (f", {byte_size(size)}" if size else "")
    return _item(
        "gradient_as_bucket_view", "Set gradient_as_bucket_view=True",
        f"{'it spares' if on else 'each rank holds'} {held}", "bytes of the gradients",
        "DistributedDataParallel(model, gradient_as_bucket_view=True)", f"{GUIDE}, 7.6",
        status="keep" if on else "apply", gain_bytes=size,
    )  # fmt: skip


def _unused(ddp: Mapping[str, Any]) -> Check:
    on = bool(ddp.get("find_unused_parameters"))
    needless = on and ddp.get("unused_parameter_size") == 0
    reason = (
        "it searches in each step, and all parameters were used"
        if needless
        else "it searches in each step"
        if on
        else "it does not search"
    )
    return _item(
        "find_unused_parameters", "Leave find_unused_parameters=False", reason,
        "see the finding, if it costs 1 % or more",
        "DistributedDataParallel(model, find_unused_parameters=False)", f"{DDP_PAGE}, 'Practical knobs'",
        status="apply" if needless else "skip" if on else "keep",
    )  # fmt: skip


def _broadcasts(run: Run, step: RecordedStep, ddp: Mapping[str, Any]) -> Check:
    frame = run.collectives()
    own = frame[frame["kind"] == "broadcast"]
    gain = float(own["exposed_ns"].sum()) / max(1, len(run.steps()))
    part = gain / step.wall_ns
    on = bool(ddp.get("broadcast_buffers"))
    none = "no step broadcasts buffers" + (": the model has none" if on else "")
    some = f"{len(own)} broadcasts in the recording, {duration(gain)} of a step exposed"
    reason = some if len(own) else none
    return _item(
        "broadcast_buffers", "Set broadcast_buffers=False", reason, "exposed time of broadcasts",
        "DistributedDataParallel(model, broadcast_buffers=False)", f"{GOSPEL}, setup_model",
        status="apply" if part >= LEAST_SHARE else "skip", gain_s=gain / 1e9, gain_share=part,
    )  # fmt: skip


def _shard_optimizer(run: Run) -> Iterator[Check]:
    rows = run.metadata.get("ranks")
    held = [row.get("memory") for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    found = [memory.get("optimizer_bytes") for memory in held if isinstance(memory, Mapping)]
    sizes = [size for size in found if isinstance(size, int)]
    ranks = max(run.world_size, len(run.ranks))
    if not sizes or run.metadata.get("mode") not in REPLICATED or ranks < 2:
        return
    size = fmean(sizes)
    saved = size * (1 - 1 / ranks)
    yield _item(
        "shard-optimizer", "Shard the optimizer's state (ZeRO-1)", f"{byte_size(size)} of it on each of {ranks} ranks",
        "what the other ranks would hold", "dptrace record --mode zero1 compares; ZeroRedundancyOptimizer",
        f"{GUIDE}, 8.6",
        status="apply" if saved else "skip", gain_bytes=saved,
    )  # fmt: skip


def _precision(run: Run) -> Iterator[Check]:
    options = run.metadata.get("options")
    if run.on_cpu or not isinstance(options, Mapping) or options.get("amp") or options.get("dtype") != "float32":
        return
    found = run.efficiency
    reason = "matrix products run in float32" + (f", MFU {share(found.mfu)} of that peak" if found.mfu else "")
    yield _item(
        "mixed-precision", "Compute in bfloat16", reason, "not computed: dptrace record --amp measures it",
        "torch.autocast('cuda', torch.bfloat16)", f"{GUIDE}, 7.6; {GOSPEL}, use_mixed_precision", status="apply",
    )  # fmt: skip
