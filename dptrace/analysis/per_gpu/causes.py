"""Why a GPU was idle: one record per cause, from which tables, pictures, findings and comparisons take all they say.

How much idle time a cause has is computed by :func:`~dptrace.analysis.per_gpu.split.idle`.
"""

from __future__ import annotations

import msgspec

from dptrace.timeline.model import HostCause


class IdleCause(msgspec.Struct, frozen=True, kw_only=True):
    """A cause of idle time."""

    name: str
    """The figure that counts it, in ns; without ``_ns`` also the kind of its finding."""
    label: str
    """The cause in words."""
    heading: str
    """Of its column; ``|`` is where it may be broken."""
    doc: str
    """When idle time counts for it."""
    look: tuple[str, str, str, str]
    """Its color and that of text on it on a light page, then both on a dark page; see ``viewers/base/theme``."""
    pattern: str = ""
    """One of ``PATTERNS`` in ``viewers/base/theme``."""
    host_causes: tuple[HostCause, ...] = ()
    """What the host did in it; none where the host did not cause it."""
    gap: str = ""
    """What the page says of a gap of it; empty where it says what the host did."""
    text: str = ""
    """What its finding states; empty for a cause without a finding."""
    advice: str = ""
    advice_if_compiled: str = ""
    """Instead, where torch.compile is in use."""

    @property
    def kind(self) -> str:
        """The kind of its finding."""
        return self.name.removesuffix("_ns")


PIN_ADVICE = "Copy from and to pinned memory with non_blocking=True: the call stages pageable memory itself."
SYNCHRONIZING_ADVICE = (
    "Remove the blocking call (.item(), .cpu(), cudaStreamSynchronize, a copy without non_blocking=True), or move it "
    "after the launches."
)

_LATE = "the host launched late, by cause"
_IN_TIME = "idle although work was launched in time, by cause"
IDLE_CAUSES = (
    IdleCause(
        name="data_loading_ns",
        label="data loading",
        heading="data loading",
        doc=_LATE,
        look=("#9356C8", "#FFFFFF", "#836FBE", "#000000"),
        pattern="back",
        host_causes=(HostCause.DATA_LOADING,),
        text="GPUs are idle while the host waits for the DataLoader",
        advice="Raise num_workers and prefetch_factor, set persistent_workers and pin_memory, or preprocess the data "
        "offline.",
    ),
    IdleCause(
        name="allocator_ns",
        label="allocator",
        heading="allo|cator",
        doc=_LATE,
        look=("#4E3628", "#FFFFFF", "#907265", "#000000"),
        pattern="dots",
        host_causes=(HostCause.ALLOCATOR,),
        text="GPUs are idle while the host allocates or frees memory",  # the advice depends on the version of torch
    ),
    IdleCause(
        name="synchronizing_ns",
        label="synchronizing",
        heading="synchro|nizing",
        doc=_LATE,
        look=("#92884A", "#000000", "#E5D69E", "#000000"),
        pattern="bars",
        host_causes=(HostCause.SYNCHRONIZING,),
        text="GPUs are idle because the host waits for them before it launches more",
        advice=SYNCHRONIZING_ADVICE,
    ),
    IdleCause(
        name="host_bound_ns",
        label="host-bound",
        heading="host-|bound",
        doc=_LATE,
        look=("#A43F00", "#FFFFFF", "#DE741F", "#000000"),
        host_causes=(HostCause.OPERATOR, HostCause.PYTHON, HostCause.NOTHING_RECORDED, HostCause.PASSIVE),
        text="GPUs are idle because the host launches kernels late",
        advice="Launch fewer, larger kernels (torch.compile, CUDA graphs, fused optimizers); no print or logging in "
        "the loop.",
        advice_if_compiled='Capture CUDA graphs (mode="reduce-overhead"), use fused optimizers, and launch less '
        "outside the compiled graphs; no print or logging in the loop.",
    ),
    IdleCause(
        name="launching_ns",
        label="launching",
        heading="launch|ing",
        doc="the host was still in the call that launches the work",
        look=("#520CA9", "#FFFFFF", "#ADE417", "#000000"),
        pattern="hatch",
        host_causes=tuple(HostCause),
        text="GPUs are idle while the host is still in the call that launches their next work",
        advice="Warm up before you measure, since the first launch of a kernel loads or compiles it; on CUDA, "
        f"CUDA_MODULE_LOADING=EAGER loads all at the start. {PIN_ADVICE}",
    ),
    IdleCause(
        name="launch_latency_ns",
        label="launch latency",
        heading="launch latency",
        doc=_IN_TIME,
        look=("#3D7F6B", "#FFFFFF", "#5AAFA2", "#000000"),
        pattern="rails",
        gap="launch latency",
        text="GPUs are idle in short gaps between kernels that were launched in time",
        advice="Fuse small kernels (torch.compile, foreach optimizers) or capture a CUDA graph.",
        advice_if_compiled='Capture CUDA graphs (mode="reduce-overhead"), or use fused optimizers.',
    ),
    IdleCause(
        name="waiting_ns",
        label="waiting",
        heading="waiting",
        doc=_IN_TIME,
        look=("#3A4757", "#FFFFFF", "#DFE3E8", "#000000"),
        gap="waiting for another stream",
        text="GPUs are idle although work was launched: its stream was told to wait for another",
        advice="Find what the streams wait for: events recorded late, callbacks on the host, or another GPU.",
    ),
    IdleCause(
        name="bubble_ns",
        label="pipeline bubble",
        heading="bubble",
        doc=_IN_TIME,
        look=("#CA689A", "#000000", "#EE9AEE", "#000000"),
        gap="pipeline bubble",
        text="GPUs are idle because a pipeline stage waits for another",
        advice="Use more micro-batches or several stages per rank (interleaved), and balance the stages.",
    ),
    IdleCause(
        name="unexplained_ns",
        label="unexplained",
        heading="unex|plained",
        doc="idle although work was launched in time, without a recorded reason",
        look=("#110A18", "#FFFFFF", "#5A8189", "#000000"),
        gap="not explained by what is recorded",
    ),
)
"""In the order of every table."""
CAUSES = tuple(cause.name for cause in IDLE_CAUSES)
CAUSE_LABELS: dict[str, str] = {cause.name: f"Idle: {cause.label}" for cause in IDLE_CAUSES}
"""By the names in CAUSES, for charts."""
