"""Items of the checklists whose gain a replay of the recording computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from dptrace.core.units import duration
from dptrace.errors import DptraceError
from dptrace.model.planning.candidates import DDP_PAGE, GOSPEL, GUIDE, LEAST_SHARE, PAGE, WORKSHOP, Check
from dptrace.record.options.modes import REPLICATED, modes_with

if TYPE_CHECKING:
    from dptrace.replay.whatif import WhatIf
    from dptrace.run.run import Run

__all__ = ["WhatIfCheck", "applicable_checks", "what_if_checks"]

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
        answer = run.whatif(**item.changes)
        beyond = run.whatif(**item.beyond) if item.beyond else None
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
