"""Advice on a recorded training: the contents of ``dptrace advise RUN --json``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

import msgspec

from dptrace.analysis.findings.evidence import Straggler
from dptrace.analysis.findings.finding import Finding, top_findings
from dptrace.analysis.per_gpu.causes import CAUSES
from dptrace.core.checks import rank_memory
from dptrace.core.units import byte_size, duration, share
from dptrace.errors import DptraceError
from dptrace.model.collectives import POINT_TO_POINT
from dptrace.model.planning.checks import MIN_SHARE, RECORDED_TEXTS, STATUSES, Check, check_dict
from dptrace.model.planning.decision import RULES, Question, ask
from dptrace.model.scaling import gustafson_efficiency
from dptrace.record.options.modes import REPLICATED, modes_with
from dptrace.replay.changes import changes_of
from dptrace.replay.findings import compute_findings_of, findings_of, stored_answer
from dptrace.replay.whatif import WhatIf, replay_of_some
from dptrace.run.run import Run


class RecordedStep(msgspec.Struct, frozen=True, kw_only=True):
    """The mean step of a recording, in ns; the parts but ``overlapped_ns`` add up to ``wall_ns``."""

    ranks: int
    wall_ns: float
    forward_backward_ns: float
    optimizer_ns: float
    exposed_ns: float
    """Exposed communication: transfers and waiting for later ranks."""
    wait_ns: float | None
    """Exposed waiting for later ranks; None where ranks are missing from collectives."""
    overlapped_ns: float
    memory_ns: float
    idle_ns: float
    data_loading_ns: float
    """Part of the idle time."""

    @property
    def compute_ns(self) -> float:
        """Return the time in which a rank computes."""
        return self.forward_backward_ns + self.optimizer_ns

    @property
    def transfer_ns(self) -> float:
        """Return the exposed communication without waiting, or all of it where waiting is unknown."""
        return self.exposed_ns - (self.wait_ns or 0.0)

    @property
    def at_most(self) -> str:
        """Return what follows a gain that may be waiting for missing ranks."""
        return ", at most: how much of it is waiting is unknown" if self.wait_ns is None and self.exposed_ns else ""


def recorded_step(run: Run) -> RecordedStep:
    """Return the mean step of all ranks."""
    run.need("What to do is", "forward_ns", "exposed_comm_ns", "idle_ns", CAUSES[0])
    frame = run.steps()
    mean = frame.mean(numeric_only=True)
    idle = run.idle_causes()
    waits, unmatched_ns = frame["exposed_wait_ns"], float(frame["exposed_unmatched_ns"].mean())
    unknown = waits.isna().any() or unmatched_ns >= MIN_SHARE * float(mean["wall_ns"])
    return RecordedStep(
        ranks=max(run.world_size, int(frame["rank"].nunique())),
        wall_ns=float(mean["wall_ns"]),
        forward_backward_ns=float(mean["forward_ns"] + mean["backward_ns"] + mean["other_ns"]),
        optimizer_ns=float(mean["optimizer_ns"]),
        exposed_ns=float(mean["exposed_comm_ns"]),
        wait_ns=None if unknown else float(waits.mean()),
        overlapped_ns=float(mean["overlapped_comm_ns"]),
        memory_ns=float(mean["exposed_memory_ns"]),
        idle_ns=float(mean["idle_ns"]),
        data_loading_ns=float(idle["data_loading_ns"].mean()) if len(idle) else 0.0,
    )


# The questions that decide what limits a recorded step, with the documents' goals.


def recorded_questions(run: Run, step: RecordedStep) -> Iterator[Question]:
    """Yield the questions, from what limits the step to each goal that the recording can answer."""
    yield _limit(step)
    yield _data(run, step)
    if whole := step.overlapped_ns + step.transfer_ns:
        hidden = step.overlapped_ns / whole
        numbers = f"{share(hidden)} of {duration(whole)} {'with' if step.at_most else 'without'} waiting"
        yield _goal("overlap", hidden, numbers)
    if step.ranks > 1:
        serial = step.exposed_ns / step.wall_ns
        reached = gustafson_efficiency(serial, step.ranks)
        numbers = (
            f"s = {serial:.3g} of the step is communication, 1 − s·(N−1)/N = {share(reached)} on {step.ranks} ranks"
        )
        yield _goal("efficiency", reached, numbers)
    if (mfu := run.efficiency.mfu) is not None:
        yield _goal("mfu", mfu, f"MFU {share(mfu)}")
    if run.pipelines:
        part = float(run.pipeline()["pipeline_bubble_percent"].mean()) / 100
        answer = "yes" if part < RULES["bubble"].value else "no: more micro-batches, or an interleaved schedule"
        yield ask("bubble", answer, f"{share(part)} of the pipeline's time", part)
    if step.at_most:
        numbers = f"ranks are missing from collectives, exposed {duration(step.exposed_ns)} of a step"
        yield ask("straggler", "unknown: add the traces of the missing ranks", numbers, step.exposed_ns / step.wall_ns)
    elif step.ranks > 1 and step.wait_ns is not None:
        # Stages of a pipeline wait for each other also where none is late.
        by_kind = run.cross_rank.mean_waits_by_kind()
        owed = sum(by_kind[kind]["exposed_wait_ns"] or 0.0 for kind in POINT_TO_POINT & by_kind.keys())
        waited = max(step.wait_ns - owed, 0.0)
        part = waited / step.wall_ns
        numbers = f"{duration(waited)} of a step, {share(part)}"
        answer = "yes" if part >= RULES["straggler"].value else "no"
        if late := next((one for one in top_findings(findings_of(run)) if one.kind == "straggler"), None):
            # Where others wait in sends and receives, or hardly, the finding says what lateness costs.
            answer, (ns, of_step) = "yes", late.figure
            gained = "" if late.has_gain else " counted; gain unknown"
            numbers += f"; the first finding on a late rank is {duration(ns)}, {share(of_step)}{gained}"
        yield ask("straggler", answer, numbers, part)


def _data(run: Run, step: RecordedStep) -> Question:
    """Ask whether a step waits for data: on the mean rank, or on one that the others wait for, which waits for all."""
    shown = top_findings(findings_of(run))
    ns, where, late = step.data_loading_ns, "", _late_data(findings_of(run)) | {*run.cross_rank.waits_for()}
    for device in run.devices:
        rank, waited = device.timeline.rank, device.idle_causes["data_loading_ns"]
        if rank in late and "data_loading_ns" not in device.split.unknown and len(waited) and waited.mean() > ns:
            ns, where = float(waited.mean()), f" on rank {rank}, which others wait for"
    part = ns / step.wall_ns
    found = _late_data(shown) or any(one.kind == "data_loading" for one in shown)
    answer = "yes: more workers" if found or part >= RULES["data"].value else "no"
    return ask("data", answer, f"{duration(ns)} of a step{where}, {share(part)}", part)


def _limit(step: RecordedStep) -> Question:
    parts = {
        "compute": step.compute_ns,
        "communication or waiting" if step.at_most else "communication": step.transfer_ns,
        "waiting for other ranks": step.wait_ns or 0.0,
        "copies": step.memory_ns,
        "the host, data or gaps": step.idle_ns,
    }
    most = max(parts, key=lambda name: parts[name])
    listed = ", ".join(f"{name} {share(ns / step.wall_ns)}" for name, ns in parts.items() if ns)
    numbers, value = f"{listed} of {duration(step.wall_ns)}", parts[most] / step.wall_ns
    return ask("bound", most, numbers, value)


def _goal(rule: str, value: float, numbers: str) -> Question:
    """Ask whether a share reaches its goal."""
    answer = "yes" if value >= RULES[rule].value else "no"
    return ask(rule, answer, numbers, value)


# Items of the checklists that are no findings: what a recording answers without a replay, its options and its split.


_COVERED = {
    "num_workers": ("data_loading",),
    "pin_memory": ("copies", "pageable_copies"),
    "find_unused_parameters": ("unused_parameters",),
}
"""Kinds of findings that say more than an item, and gain what it would, or a part."""


def covered(findings: Sequence[Finding]) -> set[str]:
    """Return the items that findings answer: with two figures for one cause, one would contradict the other."""
    kinds = {one.kind for one in findings} | ({"data_loading"} if _late_data(findings) else set())
    return {name for name, of in _COVERED.items() if kinds & {*of}}


def _late_data(findings: Sequence[Finding]) -> set[int]:
    """Return the ranks that others wait for because they wait for data."""
    about = (one.evidence for one in findings)
    return {rank for one in about if isinstance(one, Straggler) and one.cause == "data_loading" for rank in one.ranks}


def _item(
    name: str, reason: str, status: str = "", *, gain_ns: float | None = None, wall_ns: float = 1.0, **gains: Any
) -> Check:
    """Return an item with its texts; without a status, it applies if it gains 1 % of the step or more."""
    part = None if gain_ns is None else gain_ns / wall_ns
    texts = RECORDED_TEXTS[name]
    return Check(
        name=name,
        what=texts.what,
        status=status or ("apply" if (part or 0.0) >= MIN_SHARE else "skip"),
        reason=reason,
        gain_s=None if gain_ns is None else gain_ns / 1e9,
        gain_share=part,
        computed=texts.computed,
        do=texts.do,
        source=texts.source,
        **gains,
    )


def step_checks(step: RecordedStep) -> Iterator[Check]:
    """Yield the items that the parts of the mean step answer."""
    once, wall_ns = step.optimizer_ns + step.transfer_ns, step.wall_ns
    rest = "communication" if step.at_most else "transfer"
    reason = f"the optimizer and exposed {rest}, {duration(once)}, once for twice the samples{step.at_most}"
    yield _item("larger-batch", reason, gain_ns=once / 2, wall_ns=wall_ns)
    if not step.data_loading_ns:
        yield _item("num_workers", "no step waits for the DataLoader", "skip", gain_ns=0.0)
    reason = f"{duration(step.memory_ns)} of exposed copies in a step"
    yield _item("pin_memory", reason, gain_ns=step.memory_ns, wall_ns=wall_ns)


def option_checks(run: Run, step: RecordedStep) -> Iterator[Check]:
    """Yield the items that DDP's options and the memory of the ranks answer."""
    ddp = run.metadata.get("ddp")
    if isinstance(ddp, Mapping):
        size, on = ddp.get("total_parameter_size_bytes"), bool(ddp.get("gradient_as_bucket_view"))
        size = size if isinstance(size, int) else None
        held = "a second copy of the gradients" + (f", {byte_size(size)}" if size else "")
        reason = f"{'it spares' if on else 'each rank holds'} {held}"
        yield _item("gradient_as_bucket_view", reason, "keep" if on else "apply", gain_bytes=size)
        yield _unused(ddp)
        yield _broadcasts(run, step, bool(ddp.get("broadcast_buffers")))
    yield from _shard_optimizer(run)
    options = run.metadata.get("options")
    wide = isinstance(options, Mapping) and options.get("dtype") == "float32" and not options.get("amp")
    if wide and not run.on_cpu:
        mfu = run.efficiency.mfu
        reason = "matrix products run in float32" + (f", MFU {share(mfu)} of that peak" if mfu else "")
        yield _item("mixed-precision", reason, "apply")


def _unused(ddp: Mapping[str, Any]) -> Check:
    if not ddp.get("find_unused_parameters"):
        return _item("find_unused_parameters", "it does not search", "keep")
    if ddp.get("unused_parameter_size") == 0:
        return _item("find_unused_parameters", "it searches in each step, and all parameters were used", "apply")
    return _item("find_unused_parameters", "it searches in each step", "skip")


def _broadcasts(run: Run, step: RecordedStep, on: bool) -> Check:
    frame = run.collectives()
    own = frame[frame["kind"] == "broadcast"]
    gain = float(own["exposed_ns"].sum()) / max(1, len(run.steps()))
    none = "no step broadcasts buffers" + (": the model has none" if on else "")
    some = f"{len(own)} broadcasts in the recording, {duration(gain)} of a step exposed"
    return _item("broadcast_buffers", some if len(own) else none, gain_ns=gain, wall_ns=step.wall_ns)


def _shard_optimizer(run: Run) -> Iterator[Check]:
    sizes = rank_memory(run.metadata, "optimizer_bytes")
    ranks = max(run.world_size, len(run.ranks))
    if not sizes or run.metadata.get("mode") not in REPLICATED or ranks < 2:
        return
    size = fmean(sizes)
    saved = size * (1 - 1 / ranks)
    reason = f"{byte_size(size)} of it on each of {ranks} ranks"
    yield _item("shard-optimizer", reason, "apply" if saved else "skip", gain_bytes=saved)


# Items of the checklists whose gain a replay of the recording computes.

_CAPS = (1, 5, 25, 100)
"""Sizes of DDP's buckets that are tried, in MiB: its first bucket, its others, and between and beyond."""
_MICRO_STEPS = 4
"""Micro-batches whose gradients are reduced together: three quarters of the messages go."""
_WITHOUT_BUCKETS = {*REPLICATED} - {*modes_with("ddp"), *modes_with("nodes")}
"""Modes that all-reduce each gradient on its own."""


def _is_ddp(run: Run) -> bool:
    """Return whether the model is a DistributedDataParallel."""
    of_mode = run.metadata.get("mode") in modes_with("ddp")
    return of_mode or bool(run.metadata.get("ddp")) or any(timeline.uses_ddp for timeline in run.timelines)


def _is_fsdp2(run: Run) -> bool:
    """Return whether fully_shard is in use."""
    labels = (call.label for timeline in run.timelines for call in timeline.collectives)
    return run.metadata.get("mode") in modes_with("fully sharded") or any(one.startswith("FSDP::") for one in labels)


def _kind_of_job(run: Run) -> str:
    """Return what follows the name of an item that is done differently: with DDP, with fully_shard, without either."""
    return "-ddp" if _is_ddp(run) else "-fsdp2" if _is_fsdp2(run) else ""


class WhatIfCheck(NamedTuple):
    """The what-if that answers an item."""

    name: str
    changes: dict[str, Any]
    """Options of :meth:`dptrace.Run.whatif`."""
    texts: str = ""
    """The row of its texts, where that is not its name."""
    of_messages: bool = False
    """Whether it changes only messages, so that it gains no more than their exposed transfer."""
    number: int = 0
    """For the texts."""

    @property
    def typed(self) -> str:
        """Return the changes as options of ``dptrace whatif``."""
        words = ((f"--{name.replace('_', '-')}", value) for name, value in self.changes.items())
        return " ".join(word if value is True else f"{word} {value}" for word, value in words)


def applicable_checks(run: Run) -> Iterator[WhatIfCheck]:
    """Yield the items that a recording can answer."""
    if max(run.world_size, len(run.ranks)) > 1:
        mode = run.metadata.get("mode")
        yield WhatIfCheck("faster-links", {"bandwidth": "2x"}, of_messages=True)
        job = _kind_of_job(run)
        yield WhatIfCheck("accumulate", {"accumulate": _MICRO_STEPS}, f"accumulate{job}", number=_MICRO_STEPS)
        if mode in _WITHOUT_BUCKETS:
            yield WhatIfCheck("ddp", {"schedule": "ddp"})
        if _sends_wide(run):
            yield WhatIfCheck("compress", {"compress": "bf16"}, f"compress{job}", of_messages=True)
        if mode == "ddp" or run.metadata.get("ddp"):
            for cap in _CAPS:
                yield WhatIfCheck("bucket-size", {"bucket_cap_mb": cap}, number=cap, of_messages=True)


def _sends_wide(run: Run) -> bool:
    """Return whether gradients are reduced in 32 bits."""
    found = {
        c.dtype.lower() for t in run.timelines for c in t.collectives if c.kind in ("all_reduce", "reduce_scatter")
    }
    return bool(found & {"float", "float32"})


def what_if_checks(
    run: Run, step: RecordedStep, progress: Callable[[float], None] = lambda fraction: None
) -> list[Check]:
    """Return the items with their gain; of the sizes of buckets, the best.

    While the cache has them, they need no replay.

    Args:
        progress: called with the fraction that is done.
    """
    items = tuple(applicable_checks(run))
    question = "; ".join(("what-ifs", *(f"{item.texts or item.name} {item.number}: {item.typed}" for item in items)))
    return list(stored_answer(run, question, tuple[Check, ...], lambda: _all_answered(run, items, step, progress)))


def _all_answered(
    run: Run, items: Sequence[WhatIfCheck], step: RecordedStep, progress: Callable[[float], None]
) -> tuple[Check, ...]:
    found = dict[str, Check]()
    for number, item in enumerate(items, 1):
        one = _answered(run, item, step)
        progress(number / len(items))
        before = found.get(item.name)
        if before is None or (one.gain_s or -1e9) > (before.gain_s or -1e9):
            found[item.name] = one
    return tuple(found.values())


def _answered(run: Run, item: WhatIfCheck, step: RecordedStep) -> Check:
    texts = RECORDED_TEXTS[item.texts or item.name]
    about: dict[str, Any] = {
        "what": texts.what.format(item.number),
        "do": texts.do.format(item.number),
        "source": texts.source,
    }
    about |= {"name": item.name, "computed": f"dptrace whatif RUN {item.typed}"}
    try:
        answer = replay_of_some(run).whatif(changes_of(**item.changes))
    except DptraceError as error:
        return Check(status="skip", reason=f"not known: {error}", **about)
    gained = answer.measured_step_ns - answer.predicted_ns_per_micro_step
    if answer.micro_steps == 1:
        # As findings and dptrace whatif say it: how much earlier the run ends, not how much shorter its median step is.
        gained = answer.step_gain_ns
    gain: float | None = gained
    reason, can_tell = _reason(answer), answer.can_tell
    if can_tell and item.of_messages and gained > step.transfer_ns + MIN_SHARE * step.wall_ns:
        reason, can_tell, gain = _beyond_messages(gained, step), False, None
    part = None if gain is None else gain / max(1.0, step.wall_ns)
    status = "apply" if part is not None and part >= MIN_SHARE and can_tell else "skip"
    return Check(status=status, reason=reason, gain_s=None if gain is None else gain / 1e9, gain_share=part, **about)


def _beyond_messages(gain: float, step: RecordedStep) -> str:
    return (
        f"cannot tell: {duration(gain)} by replay, but messages alone gain no more than their exposed transfer, "
        f"{duration(step.transfer_ns)} of a step"
    )


def _reason(answer: WhatIf) -> str:
    if not answer.can_tell:
        return f"cannot tell: {next(doubt.text for doubt in answer.doubts if doubt.refuses)}"
    per, before = answer.micro_steps, answer.measured_step_ns
    high = duration(answer.high_ns / per)
    within = f"{duration(answer.low_ns / per)} to {high}" if answer.low_ns > 0 else f"up to {high}"
    at_most = ", at most" if any(doubt.kind == "absent_ranks" for doubt in answer.doubts) else ""
    took = "" if per > 1 else "the median step takes "
    return (
        f"{took}{duration(answer.predicted_ns_per_micro_step)} instead of {duration(before)} by replay, "
        f"range {within}{at_most}"
    )


SCHEMA = 1
_GAINS = (
    "Findings gain what is left after those above them, so that their gains add up; where a replay can't tell, the "
    "time that was counted stands there. Other changes gain, each by itself on the run as recorded, by replay, and do "
    "not add up: how much earlier the run ends per step, of which the median step need not show all."
)


def recorded_advice(run: Run, progress: Callable[[float], None] = lambda fraction: None) -> dict[str, Any]:
    """Advise on a recording: what limits its step, its findings in their order, then the checklists with their gains.

    Args:
        progress: called with the fraction of the replays that are done.

    Raises:
        DptraceError: the recording has no steps, or its files can't be read again for a replay.
    """
    if not len(run.steps()):
        raise DptraceError(f"{run.path}: has no steps, so there is nothing to advise on. Record with profiler.step().")
    step = recorded_step(run)
    listed, on_compute = advised_findings(run)
    but = covered((*listed, *on_compute))
    found = {one.name: one for one in what_if_checks(run, step, progress)}
    # An option says more than the parts of the step.
    for one in (*option_checks(run, step), *step_checks(step)):
        if one.name not in but:
            found.setdefault(one.name, one)
    checks = sorted(
        found.values(), key=lambda one: (STATUSES.index(one.status), -(one.gain_s or 0.0), -(one.gain_bytes or 0.0))
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
            "exposed_comm_ns": round(step.exposed_ns),
            "exposed_transfer_ns": None if step.wait_ns is None else round(step.transfer_ns),
            "exposed_wait_ns": None if step.wait_ns is None else round(step.wait_ns),
            "overlapped_ns": round(step.overlapped_ns),
            "exposed_memory_ns": round(step.memory_ns),
            "idle_ns": round(step.idle_ns),
        },
        "path": [msgspec.to_builtins(question) for question in recorded_questions(run, step)],
        "findings": [one.to_dict() for one in listed],
        "compute_findings": [one.to_dict() for one in on_compute],
        "checks": [check_dict(one) for one in checks],
        "assumptions": [*run.several_runs, _GAINS, *_represented(run), *_other_notes(run)],
    }


def advised_findings(run: Run) -> tuple[tuple[Finding, ...], tuple[Finding, ...]]:
    """Return the list of findings, and those on the compute of a GPU, which gain what is left after these."""
    on_compute = () if run.figures_only or run.on_cpu else compute_findings_of(run, after=True)
    return findings_of(run), on_compute


def _other_notes(run: Run) -> list[str]:
    return [note for note in run.notes if note not in run.several_runs]


def _represented(run: Run) -> list[str]:
    """Say how many ranks are replayed, where others are like them."""

    def text() -> str:
        try:
            of = replay_of_some(run).model.of
        except DptraceError:  # each item says that no replay can be made
            return ""
        return "" if of is None else of.text

    return [known] if (known := stored_answer(run, "replayed ranks", str, text)) else []
