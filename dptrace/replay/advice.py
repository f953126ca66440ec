"""Advice on a recorded training: the contents of ``dptrace advise RUN --json``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from statistics import fmean
from typing import Any

import msgspec

from dptrace.analysis.findings.finding import by_gain
from dptrace.core.units import byte_size, duration, share
from dptrace.errors import DptraceError
from dptrace.model.planning.candidates import DDP_PAGE, GOSPEL, GUIDE, LEAST_SHARE, PAGE, WORKSHOP, Check, check_dict
from dptrace.model.planning.decision import RULES, Question, question_by_rule, question_dict
from dptrace.model.scaling import gustafson_efficiency
from dptrace.record.options.modes import REPLICATED, modes_with
from dptrace.replay.gains import with_gains
from dptrace.replay.options import changes_of
from dptrace.replay.whatif import WhatIf, replay_of
from dptrace.run.run import Run

__all__ = ["recorded_advice"]


# The questions that decide what limits a recorded step, with the documents' goals.


_GUIDE = "Distributed Training (guide)"
_NOTABLE = 0.05
"""Share of a step from which waiting for data or for a rank counts."""


class RecordedStep(msgspec.Struct, frozen=True, kw_only=True):
    """The mean step of a recording, in ns; the parts but ``overlapped_ns`` add up to ``wall_ns``."""

    ranks: int
    wall_ns: float
    forward_backward_ns: float
    optimizer_ns: float
    transfer_ns: float
    """Exposed communication without waiting for later ranks."""
    wait_ns: float
    """Exposed waiting for later ranks."""
    overlapped_ns: float
    memory_ns: float
    idle_ns: float
    data_loading_ns: float
    """Part of the idle time."""

    @property
    def compute_ns(self) -> float:
        """Return the time in which a rank computes."""
        return self.forward_backward_ns + self.optimizer_ns


def recorded_step(run: Run) -> RecordedStep:
    """Return the mean step of all ranks."""
    frame = run.steps()
    mean = frame.mean(numeric_only=True)
    idle = run.idle_causes()
    wait = float(frame["exposed_wait_ns"].fillna(0).mean())
    return RecordedStep(
        ranks=max(run.world_size, int(frame["rank"].nunique())),
        wall_ns=float(mean["wall_ns"]),
        forward_backward_ns=float(mean["forward_ns"] + mean["backward_ns"] + mean["other_ns"]),
        optimizer_ns=float(mean["optimizer_ns"]),
        transfer_ns=float(mean["exposed_comm_ns"]) - wait,
        wait_ns=wait,
        overlapped_ns=float(mean["overlapped_comm_ns"]),
        memory_ns=float(mean["exposed_memory_ns"]),
        idle_ns=float(mean["idle_ns"]),
        data_loading_ns=float(idle["data_loading_ns"].mean()) if len(idle) else 0.0,
    )


def recorded_questions(run: Run, step: RecordedStep) -> list[Question]:
    """Return the questions, from what limits the step to each goal that the recording can answer."""
    found = [_limit(step), _data(step), *_overlap(step), *_efficiency(step), *_mfu(run), *_bubble(run)]
    return [*found, *_straggler(step)]


def _limit(step: RecordedStep) -> Question:
    parts = {
        "compute": step.compute_ns,
        "communication": step.transfer_ns,
        "waiting for other ranks": step.wait_ns,
        "copies": step.memory_ns,
        "the host, data or gaps": step.idle_ns,
    }
    most = max(parts, key=lambda name: parts[name])
    numbers = ", ".join(f"{name} {share(ns / step.wall_ns)}" for name, ns in parts.items() if ns)
    return Question(
        name="bound",
        question="What takes most of the step?",
        answer=f"{most}",
        numbers=f"{numbers} of {duration(step.wall_ns)}",
        value=parts[most] / step.wall_ns,
        limit=None,
        unit="ratio",
        source=f"{_GUIDE}, 1.3",
    )


def _goal(name: str, question: str, answer: str, numbers: str, value: float, rule: str) -> Question:
    return question_by_rule(rule, name, question, answer, numbers, value, "ratio")


def _data(step: RecordedStep) -> Question:
    part = step.data_loading_ns / step.wall_ns
    return Question(
        name="data",
        question="Does it wait for data?",
        answer="yes: more workers" if part >= _NOTABLE else "no",
        numbers=f"{duration(step.data_loading_ns)} of a step, {share(part)}",
        value=part,
        limit=_NOTABLE,
        unit="ratio",
        source=f"{_GUIDE}, 7.6",
    )


def _overlap(step: RecordedStep) -> list[Question]:
    whole = step.overlapped_ns + step.transfer_ns
    if not whole:
        return []
    hidden = step.overlapped_ns / whole
    answer = "yes" if hidden > RULES["overlap"].value else "no"
    numbers = f"{share(hidden)} of {duration(whole)} without waiting"
    return [_goal("overlap", "Is more than 80 % of the communication hidden?", answer, numbers, hidden, "overlap")]


def _efficiency(step: RecordedStep) -> list[Question]:
    if step.ranks < 2:
        return []
    serial = (step.transfer_ns + step.wait_ns) / step.wall_ns
    reached = gustafson_efficiency(serial, step.ranks)
    answer = "yes" if reached >= RULES["efficiency"].value else "no"
    numbers = f"s = {serial:.3g} of the step is communication, 1 − s·(N−1)/N = {share(reached)} on {step.ranks} ranks"
    return [_goal("efficiency", "Does it scale with 70 % or more?", answer, numbers, reached, "efficiency")]


def _mfu(run: Run) -> list[Question]:
    reached = run.efficiency.mfu
    if reached is None:
        return []
    answer = "yes" if reached > RULES["mfu"].value else "no"
    return [_goal("mfu", "Is the MFU above 40 %?", answer, f"MFU {share(reached)}", reached, "mfu")]


def _bubble(run: Run) -> list[Question]:
    if not run.pipelines:
        return []
    part = float(run.pipeline()["pipeline_bubble_percent"].mean()) / 100
    answer = "yes" if part < RULES["bubble"].value else "no: more micro-batches, or an interleaved schedule"
    numbers = f"{share(part)} of the pipeline's time"
    return [_goal("bubble", "Is the pipeline's bubble below 10 %?", answer, numbers, part, "bubble")]


def _straggler(step: RecordedStep) -> list[Question]:
    if step.ranks < 2:
        return []
    part = step.wait_ns / step.wall_ns
    return [
        Question(
            name="straggler",
            question="Do ranks wait for a straggler?",
            answer="yes" if part >= _NOTABLE else "no",
            numbers=f"{duration(step.wait_ns)} of a step, {share(part)}",
            value=part,
            limit=_NOTABLE,
            unit="ratio",
            source="Data Parallelism (page), 'Where the field is now'",
        )
    ]


# Items of the checklists that a recording answers without a replay: its findings, its options, its split.


_BY_REPLAY = "gain of the finding by replay; dptrace analyze --gains"
_AS_COUNTED = "cost of the finding in a step, since its gain is unknown; dptrace analyze"
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
                computed=_AS_COUNTED if one.gain is None or one.gain.ns is None else _BY_REPLAY,
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


# Items of the checklists whose gain a replay of the recording computes.


_CAPS = (1, 5, 25, 100)
_MICRO_STEPS = 4
_WITHOUT_BUCKETS = {*REPLICATED} - {*modes_with("ddp"), *modes_with("nodes")}
"""Modes that all-reduce each gradient on its own."""


class WhatIfCheck(msgspec.Struct, frozen=True):
    """An item, and the what-if that answers it."""

    name: str
    what: str
    changes: dict[str, Any]
    """Options of :meth:`dptrace.Run.whatif`."""
    typed: str
    """The same for ``dptrace whatif``."""
    do: str
    source: str
    bound: bool = False
    """Whether the gain is what is possible at most."""
    beyond: dict[str, Any] = {}
    """Changes that another item has: the gain is what comes on top of them."""


_NO_STRAGGLER = WhatIfCheck(
    "straggler",
    "Find why a rank is late",
    {"no_straggler": True},
    "--no-straggler",
    "dptrace analyze names the rank and the cause",
    f"{PAGE}, 'Where the field is now'",
)
_ACROSS = (
    WhatIfCheck(
        "overlap",
        "Overlap communication with computation",
        {"perfect_overlap": True},
        "--perfect-overlap",
        "DistributedDataParallel, fully_shard, or all-reduces from hooks",
        f"{WORKSHOP}, step 4; {DDP_PAGE}",
        bound=True,
    ),
    WhatIfCheck(
        "faster-links",
        "Use links twice as fast",
        {"bandwidth": 2.0},
        "--bandwidth 2x",
        "links between and within nodes, the backend's settings; dptrace links measures yours",
        f"{GUIDE}, 6.6",
    ),
    WhatIfCheck(
        "accumulate",
        f"Accumulate gradients over {_MICRO_STEPS} micro-batches",
        {"accumulate": _MICRO_STEPS},
        f"--accumulate {_MICRO_STEPS}",
        "with model.no_sync(): all but the last backward",
        f"{PAGE}, 'levers'; {GOSPEL}, gradient_accumulation_steps=4",
    ),
)
_COMPRESS = WhatIfCheck(
    "compress",
    "Send gradients in 16 bits",
    {"compress": "bf16"},
    "--compress bf16",
    "model.register_comm_hook(None, default_hooks.bf16_compress_hook)",
    f"{GUIDE}, 7.5",
)
_DDP = WhatIfCheck(
    "ddp",
    "Reduce gradients as DistributedDataParallel does",
    {"schedule": "ddp"},
    "--schedule ddp",
    "DistributedDataParallel(model)",
    f"{WORKSHOP}, step 5: always use DDP; {DDP_PAGE}",
)
_HOST = WhatIfCheck(
    "compile",
    "Free the host: torch.compile, CUDA graphs",
    {"no_host_delay": True},
    "--no-host-delay",
    "model = torch.compile(model, mode='reduce-overhead'); no .item() or print in the loop",
    f"{GUIDE}, 6.6",
    bound=True,
)
_HOST_OF_ALL = msgspec.structs.replace(
    _HOST,
    changes={"no_straggler": True, "no_host_delay": True},
    typed="--no-straggler --no-host-delay",
    beyond={"no_straggler": True},
)
"""Where one rank's host is late, what frees all hosts counts on top of that."""
_RECOMPUTE = WhatIfCheck(
    "checkpoint-activations",
    "Checkpoint fewer activations",
    {"no_recompute": True},
    "--no-recompute",
    "checkpoint every k-th block only, if memory allows",
    f"{GUIDE}, 1.2; {GOSPEL}, use_gradient_checkpointing",
    bound=True,
)


def applicable_checks(run: Run) -> Iterator[WhatIfCheck]:
    """Yield the items that a recording can answer."""
    if max(run.world_size, len(run.ranks)) > 1:
        yield _NO_STRAGGLER
        yield from _ACROSS
        mode = run.metadata.get("mode")
        if mode in _WITHOUT_BUCKETS:
            yield _DDP
        if _sends_wide(run):
            yield _COMPRESS
        if mode == "ddp" or run.metadata.get("ddp"):
            yield from _buckets()
    if not run.on_cpu:
        yield _HOST if len(run.ranks) == 1 else _HOST_OF_ALL
    if run.recompute_percent():
        yield _RECOMPUTE


def _sends_wide(run: Run) -> bool:
    """Return whether gradients are reduced in 32 bits."""
    found = {
        c.dtype.lower() for t in run.timelines for c in t.collectives if c.kind in ("all_reduce", "reduce_scatter")
    }
    return bool(found & {"float", "float32"})


def _buckets() -> Iterator[WhatIfCheck]:
    for cap in _CAPS:
        yield WhatIfCheck(
            "bucket-size",
            f"Set the size of the buckets to {cap} MiB",
            {"bucket_cap_mb": float(cap)},
            f"--bucket-cap-mb {cap}",
            f"DistributedDataParallel(model, bucket_cap_mb={cap})",
            f"{GUIDE}, 7.3; {DDP_PAGE}; {PAGE}, 'Build it'",
        )


def what_if_checks(run: Run, progress: Callable[[float], None] = lambda fraction: None) -> list[Check]:
    """Return the items with their gain; of the sizes of buckets, the best.

    Args:
        progress: called with the fraction that is done.
    """
    found: dict[str, Check] = {}
    items = list(applicable_checks(run))
    for number, item in enumerate(items, 1):
        one = _answered(run, item)
        progress(number / len(items))
        before = found.get(item.name)
        if before is None or (one.gain_s or -1e9) > (before.gain_s or -1e9):
            found[item.name] = one
    return list(found.values())


def _answered(run: Run, item: WhatIfCheck) -> Check:
    command = f"dptrace whatif RUN {item.typed}"
    try:
        answer = replay_of(run).whatif(changes_of(**item.changes))
        beyond = replay_of(run).whatif(changes_of(**item.beyond)) if item.beyond else None
    except DptraceError as error:
        return Check(
            name=item.name,
            what=item.what,
            status="skip",
            reason=f"not known: {error}",
            computed=command,
            do=item.do,
            source=item.source,
        )
    before = answer.measured_step_ns if beyond is None else beyond.predicted_step_ns
    gain = before - answer.predicted_ns_per_micro_step
    if answer.micro_steps == 1:
        # As findings and dptrace whatif say it: how much earlier the run ends, not how much shorter its median step is.
        gain = answer.step_gain_ns - (0 if beyond is None else beyond.step_gain_ns)
    part = gain / max(1, answer.measured_step_ns)
    applies = part >= LEAST_SHARE and answer.can_tell
    return Check(
        name=item.name,
        what=item.what,
        status="apply" if applies else "skip",
        reason=_reason(item, answer, before),
        gain_s=gain / 1e9,
        gain_share=part,
        computed=command,
        do=item.do,
        source=item.source,
    )


def _reason(item: WhatIfCheck, answer: WhatIf, before: int) -> str:
    if not answer.can_tell:
        return f"cannot tell: {next(doubt.text for doubt in answer.doubts if doubt.refuses)}"
    per = answer.micro_steps
    low, high = duration(answer.low_ns / per), duration(answer.high_ns / per)
    at_most = ", at most" if item.bound else ""
    at_most += ", in addition to the cost of the late rank" if item.beyond else ""
    return (
        f"{duration(answer.predicted_ns_per_micro_step)} instead of {duration(before)} a step by "
        f"replay, range {low} to {high}{at_most}"
    )


SCHEMA = 1
_ORDER = {"apply": 0, "keep": 1, "skip": 2}
_GAINS = (
    "Gains are of one change each, by replay; they do not add up. Those of findings are after the findings above, or "
    "what they cost where a replay can't tell."
)


def recorded_advice(run: Run, progress: Callable[[float], None] = lambda fraction: None) -> dict[str, Any]:
    """Advise on a recording: what limits its step, and the checklists with their gains.

    Args:
        progress: called with the fraction of the replays that are done.

    Raises:
        DptraceError: the recording has no steps, or its files can't be read again for a replay.
    """
    if not len(run.steps()):
        raise DptraceError(f"{run.path}: has no steps, so there is nothing to advise on. Record with profiler.step().")
    step = recorded_step(run)
    found = {one.name: one for one in what_if_checks(run, progress)}
    for one in finding_checks(with_gains(run)):
        # What a finding gains by itself is known where a replay could tell.
        known = one.computed == _BY_REPLAY or one.name not in found
        found[one.name] = one if known else _with_gain(one, found[one.name])
    # A finding says more than an option, and both more than the parts of the step.
    for one in (*option_checks(run, step), *step_checks(run, step)):
        found.setdefault(one.name, one)
    checks = sorted(
        found.values(), key=lambda one: (_ORDER[one.status], -(one.gain_s or 0.0), -(one.gain_bytes or 0.0))
    )
    return {
        "schema": SCHEMA,
        "kind": "advise",
        "recorded": run.path,
        "mode": run.metadata.get("mode"),
        "ranks": step.ranks,
        "step_ns": round(step.wall_ns),
        "parts": {
            "compute_ns": round(step.compute_ns),
            "optimizer_ns": round(step.optimizer_ns),
            "exposed_transfer_ns": round(step.transfer_ns),
            "exposed_wait_ns": round(step.wait_ns),
            "overlapped_ns": round(step.overlapped_ns),
            "exposed_memory_ns": round(step.memory_ns),
            "idle_ns": round(step.idle_ns),
        },
        "path": [question_dict(question) for question in recorded_questions(run, step)],
        "checks": [check_dict(one) for one in checks],
        "assumptions": [_GAINS, *run.notes],
    }


def _with_gain(finding: Check, replayed: Check) -> Check:
    """Return what a finding says with the gain of the replay, which knows what else would hold up the step."""
    gains = {name: getattr(replayed, name) for name in ("status", "gain_s", "gain_share", "computed")}
    reason = f"{finding.reason} {replayed.reason[:1].upper()}{replayed.reason[1:]}."
    return msgspec.structs.replace(finding, reason=reason, **gains)
