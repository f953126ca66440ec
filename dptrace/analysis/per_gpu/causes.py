"""Why a GPU was idle, and why a rank is late: one record per cause, from which all outputs take what they say.

How much idle time a cause has is computed by :func:`~dptrace.analysis.per_gpu.split.idle`; what a rank does longer than
others, by ``replay/transforms/stragglers.py``.
"""

from __future__ import annotations

import msgspec

from dptrace.timeline.model import HostCause


class IdleKind(msgspec.Struct, frozen=True, kw_only=True):
    """What a finding says of idle time of a cause."""

    name: str
    """The figure that counts it, in ns."""
    named: str = ""
    """The kind of its finding, where that is not the figure's name without ``_ns``."""
    text: str = ""
    """What its finding states; empty for a cause without a finding."""
    advice: str = ""
    advice_if_compiled: str = ""
    """Instead, where torch.compile is in use."""

    @property
    def kind(self) -> str:
        """The kind of its finding."""
        return self.named or self.name.removesuffix("_ns")


class IdleCause(IdleKind, frozen=True, kw_only=True):
    """A cause of idle time."""

    label: str
    """The cause in words."""
    doc: str
    """When idle time counts for it."""
    look: tuple[str, str, str, str]
    """Its color and that of text on it on a light page, then both on a dark page; see ``viewers/base/theme``."""
    heading: str = ""
    """Of its column; the label, if empty."""
    pattern: str = ""
    """One of ``PATTERNS`` in ``viewers/base/theme``."""
    host_causes: tuple[HostCause, ...] = ()
    """What the host did in it; none where the host did not cause it."""
    why: str
    """A clause on the page under the pointer."""
    gap: str = ""
    """What the page says of a gap of it; empty where it says what the host did."""
    without: str = ""
    """The change that takes its finding away, in words: hosts spend no time in it. Empty where the change is another;
    see ``COUNTERFACTUALS`` in ``replay/counterfactual.py``."""


PIN_ADVICE = "Copy from and to pinned memory with non_blocking=True: the call stages pageable memory itself."
SYNCHRONIZING_ADVICE = (
    "Remove the blocking call (.item(), .cpu(), cudaStreamSynchronize, a copy without non_blocking=True), or move it "
    "after the launches."
)
PYTHON_ADVICE = (
    "Find the Python code that runs then: sleep, I/O, locks, logging, checkpoints, garbage collection. A "
    "recording with_stack=True names the function."
)
UNRECORDED_ADVICE = (
    "Record with_stack=True: the trace shows no call there. Look for garbage collection, logging and checkpoints."
)

_LATE = "the host launched late, by cause"
_IN_TIME = "idle although work was launched in time, by cause"
IDLE_CAUSES = (
    IdleCause(
        name="data_loading_ns",
        label="data loading",
        doc=_LATE,
        look=("#9356C8", "#FFFFFF", "#836FBE", "#000000"),
        pattern="back",
        why="the host waited for its DataLoader",
        host_causes=(HostCause.DATA_LOADING,),
        text="GPUs are idle while the host waits for the DataLoader",
        advice="Raise num_workers and prefetch_factor, set persistent_workers and pin_memory, or preprocess the data "
        "offline.",
    ),
    IdleCause(
        name="allocator_ns",
        label="allocator",
        doc=_LATE,
        look=("#4E3628", "#FFFFFF", "#907265", "#000000"),
        pattern="dots",
        why="the host allocated or freed memory",
        host_causes=(HostCause.ALLOCATOR,),
        text="GPUs are idle while the host allocates or frees memory",  # the advice depends on the version of torch
        without="no time in calls that allocate or free",
    ),
    IdleCause(
        name="synchronizing_ns",
        label="synchronizing",
        doc=_LATE,
        look=("#92884A", "#000000", "#E5D69E", "#000000"),
        pattern="bars",
        why="the host waited for the device before it launched the next kernel",
        host_causes=(HostCause.SYNCHRONIZING,),
        text="GPUs are idle because the host waits for them before it launches more",
        advice=SYNCHRONIZING_ADVICE,
        without="no waits of hosts for their devices",
    ),
    IdleCause(
        name="host_bound_ns",
        label="host-bound",
        doc=_LATE,
        look=("#A43F00", "#FFFFFF", "#DE741F", "#000000"),
        why="the host launched the next kernel too late",
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
        doc="the host was still in the call that launches the work",
        look=("#520CA9", "#FFFFFF", "#ADE417", "#000000"),
        pattern="hatch",
        why="the host was still in the call that launches the next kernel",
        host_causes=tuple(HostCause),
        text="GPUs are idle while the host is still in the call that launches their next work",
        advice="Warm up before you measure, since the first launch of a kernel loads or compiles it; on CUDA, "
        f"CUDA_MODULE_LOADING=EAGER loads all at the start. {PIN_ADVICE}",
    ),
    IdleCause(
        name="launch_latency_ns",
        label="launch latency",
        doc=_IN_TIME,
        look=("#3D7F6B", "#FFFFFF", "#5AAFA2", "#000000"),
        pattern="rails",
        why="the next kernel was launched in time; this is the latency of its launch",
        gap="launch latency",
        text="GPUs are idle in short gaps between kernels that were launched in time",
        advice="Fuse small kernels (torch.compile, foreach optimizers) or capture a CUDA graph.",
        advice_if_compiled='Capture CUDA graphs (mode="reduce-overhead"), or use fused optimizers.',
    ),
    IdleCause(
        name="waiting_ns",
        label="waiting",
        doc=_IN_TIME,
        look=("#3A4757", "#FFFFFF", "#DFE3E8", "#000000"),
        why="the next kernel was launched in time, but its stream was told to wait for another",
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
        why="the pipeline schedule had no work for this stage",
        gap="pipeline bubble",
        text="GPUs are idle because a pipeline stage waits for another",
        advice="Use more micro-batches or several stages per rank (interleaved), and balance the stages.",
    ),
    IdleCause(
        name="unexplained_ns",
        label="unexplained",
        doc="idle although work was launched in time, without a recorded reason",
        look=("#110A18", "#FFFFFF", "#5A8189", "#000000"),
        why="the next kernel was launched in time; nothing that is recorded says why it began later",
        gap="not explained by what is recorded",
    ),
)
"""In the order of every table."""
CAUSES = tuple(cause.name for cause in IDLE_CAUSES)


class DelayCause(msgspec.Struct, frozen=True, kw_only=True):
    """Why a rank is late: what it does longer than others at the same place."""

    name: str
    host_causes: tuple[HostCause, ...] = ()
    """What its host does in it; a thing that hosts do has one cause of delays."""
    reason: str = ""
    """What late ranks do, of which ``stragglers.straggler_reason`` fills in the names; empty where that is unknown."""
    advice: str = ""
    of_host: bool = True
    """Whether it is the host's."""
    may_lack_core: bool = False
    """Whether a missing core may be behind it."""
    merged: bool = False
    """Whether its small parts on one rank together mean that its host is slower."""


NO_CORE = "no_core"
"""The cause of a delay of a rank without a core to run on."""
DELAY_CAUSES = (
    DelayCause(
        name="compute",
        reason="{its} compute takes longer{kernel}{instead}",
        advice="Compare its work (batch, sequence lengths, experts), clock rate and temperature with the others'.",
        of_host=False,
    ),
    DelayCause(
        name="memory_copies",
        reason="{its} memory copies take longer{copy}",
        advice="Find what it copies in this time; pin the memory and copy on a separate stream.",
        of_host=False,
    ),
    DelayCause(
        name="data_loading",
        host_causes=(HostCause.DATA_LOADING,),
        reason="{its} host waits for the DataLoader",
        advice="Raise its DataLoader's num_workers or prefetch_factor, and check its storage.",
    ),
    DelayCause(
        name="allocator",
        host_causes=(HostCause.ALLOCATOR,),
        reason="{its} host allocates memory ({what}){inside}",  # the advice depends on the version of torch
    ),
    DelayCause(
        name="synchronizing",
        host_causes=(HostCause.SYNCHRONIZING,),
        reason="{its} host blocks in{called}{inside}",
        advice=SYNCHRONIZING_ADVICE,
        merged=True,
    ),
    DelayCause(
        name="host_bound",
        host_causes=(HostCause.OPERATOR,),
        reason="{its} host is in{operator}{inside}",
        advice="Find what else runs in this operator on that rank, and compare the load of its CPU.",
        may_lack_core=True,
        merged=True,
    ),
    DelayCause(
        name="python",
        host_causes=(HostCause.PYTHON,),
        reason="{its} host runs Python code in{called} outside operators{instead}",
        advice=PYTHON_ADVICE,
        may_lack_core=True,
        merged=True,
    ),
    DelayCause(
        name="slower_host",
        reason="{its} host runs the same operators more slowly{most}",
        advice="Compare that host's CPU frequency, pinning and background load with the others'.",
        may_lack_core=True,
    ),
    DelayCause(
        name=NO_CORE,
        reason="{they_have} to run on",
        advice="Pin processes to cores, give each rank no more threads than its share (OMP_NUM_THREADS), and look for "
        "other load on the machine.",
    ),
    DelayCause(
        name="nothing_recorded",
        host_causes=(HostCause.NOTHING_RECORDED, HostCause.PASSIVE),
        reason="{its} host does nothing that the trace records{instead}",
        advice=UNRECORDED_ADVICE,
        may_lack_core=True,
    ),
    DelayCause(
        name="not_recorded",
        advice="Add its trace, which shows what it does longer; until then, its share of the waiting is a "
        "remainder: what the collectives take beyond others like them.",
        of_host=False,
    ),
    DelayCause(name="unknown", advice="Check its timeline before the collective.", of_host=False),
)
DELAYS: dict[str, DelayCause] = {cause.name: cause for cause in DELAY_CAUSES}
DELAY_OF: dict[HostCause, str] = {host: cause.name for cause in DELAY_CAUSES for host in cause.host_causes}
"""What the cause of a delay is called by what the host did."""
