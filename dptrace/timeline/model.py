"""The vocabulary between reading and figures: every interval of one GPU, named and placed in a step."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dptrace.core.intervals import EMPTY, Int64, IntervalSet
from dptrace.readers.trace import UNKNOWN_GROUP

__all__ = [
    "AFTER_LAST",
    "BEFORE_FIRST",
    "COLUMNS",
    "NO_ACTIONS",
    "UNKNOWN",
    "UNKNOWN_GROUP",
    "Action",
    "Actions",
    "Collective",
    "Kind",
    "Phase",
    "Timeline",
    "Windows",
]

BEFORE_FIRST = -1
"""Step of an interval launched before the first step began."""
AFTER_LAST = -2
"""Step of an interval launched after the last step ended."""


UNKNOWN = -1
"""Launch of an interval whose launch is not in the file: it was launched before recording began."""


class Kind(IntEnum):
    """What a device was doing."""

    COMPUTE = 0
    COMMUNICATION = 1
    MEMORY = 2


class Phase(IntEnum):
    """What it was doing it for, told from how it was launched."""

    FORWARD = 0
    BACKWARD = 1
    OPTIMIZER = 2
    OTHER = 3


@dataclass(frozen=True, slots=True)
class Collective:
    """What is known of one collective instance on one rank: a DDP bucket, an FSDP all-gather."""

    kind: str
    """``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``, ``broadcast``, ``send`` … or ``other``."""
    bytes: int = 0
    """Message bytes as nccl-tests counts them; 0 when the trace does not say."""
    dtype: str = ""
    group: str = ""
    """Its name; UNTOLD where it is one of several and the trace does not say which."""
    group_size: int = 0
    seq: int = -1
    ranks: tuple[int, ...] = ()
    """The group's ranks in the whole job, as far as the trace lists them."""
    description: str = ""
    """What the group is for: ``default_pg``, ``mesh_tp`` …"""
    peer: int = -1
    """Of a send and a receive: the rank in the whole job at the other end."""
    label: str = ""
    """What the trainer called it where it was launched: ``FSDP::all_gather (layers.3)``, ``PP:0SEND_F1`` …"""


class Action(IntEnum):
    """What a stage of a pipeline does with a micro-batch, by the letters of torch's schedules."""

    F = 0
    """Forward."""
    B = 1
    """Backward as a whole."""
    I = 2  # noqa: E741  # the field's own letter
    """The part of backward that the stage before waits for: the gradient of what came in."""
    W = 3
    """The part of backward that nobody waits for: the gradients of the weights."""


@dataclass(frozen=True, slots=True)
class Actions:
    """What a pipeline's schedule did on one GPU, sorted by start; one entry per action in each column."""

    stage: NDArray[np.int32]
    """Of the whole pipeline, from 0; -1 where the label names none (``Forward 3``)."""
    micro_batch: NDArray[np.int32]
    kind: NDArray[np.uint8]
    """:class:`Action` values."""
    step: NDArray[np.int32]
    """Index of the step that launched it, or BEFORE_FIRST or AFTER_LAST."""
    start_ns: Int64
    """When the first compute that was launched under its label began."""
    end_ns: Int64
    """When the last of it ended."""
    busy_ns: Int64
    """Compute in it; where a forward and a backward overlap it counts as backward's, so that sums count it once."""
    called_ns: Int64
    """When its label began on the host."""
    returned_ns: Int64
    """When its label ended on the host."""

    def __len__(self) -> int:
        return len(self.start_ns)

    def filter(self, chosen: NDArray[Any]) -> Actions:
        """Keep some of the actions, or put them in another order."""
        return Actions(*(getattr(self, column.name)[chosen] for column in fields(self)))


_NOT_ONE = np.empty(0, np.int32)
NO_ACTIONS = Actions(_NOT_ONE, _NOT_ONE, np.empty(0, np.uint8), _NOT_ONE, *EMPTY, *EMPTY, EMPTY[0])
"""Of a run without a pipeline."""


@dataclass(frozen=True, slots=True)
class Windows:
    """The steps on one device: ``bounds[k]`` to ``bounds[k + 1]`` is step k, so they leave no gap."""

    names: tuple[str, ...]
    bounds: Int64
    """One more entry than there are steps, ascending, in ns."""

    def __len__(self) -> int:
        return len(self.names)


COLUMNS = ("start_ns", "end_ns", "name", "kind", "phase", "step", "lane", "collective", "launch_ns", "recompute")
"""What a timeline tells of each interval."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """One GPU (rank and device): its intervals sorted by start, one entry per interval in each column."""

    rank: int
    device: int
    """Index of the GPU in its machine; -1 for a run on CPU."""
    device_name: str
    start_ns: Int64
    end_ns: Int64
    name: NDArray[np.int32]
    """Index into ``names``: the kernel's or the operator's name."""
    names: tuple[str, ...]
    kind: NDArray[np.uint8]
    """:class:`Kind` values."""
    phase: NDArray[np.uint8]
    """:class:`Phase` values; of communication and memory too: what launched them."""
    step: NDArray[np.int32]
    """Index of the step that launched it, or BEFORE_FIRST or AFTER_LAST."""
    lane: NDArray[np.int64]
    """Stream id on a GPU, thread index on a CPU."""
    collective: NDArray[np.int32]
    """Index into ``collectives``, -1 for what is not communication."""
    collectives: tuple[Collective, ...]
    windows: Windows
    path: str = ""
    notes: tuple[str, ...] = field(default=())
    launch_ns: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    """When the call that launched it began; UNKNOWN where the file does not say, and everywhere when not given."""
    data_loading: IntervalSet = EMPTY
    """When the host was in a DataLoader's next: starts and ends in ns, disjoint and sorted."""
    parameter_search: IntervalSet = EMPTY
    """When the host searched for parameters that the loss does not depend on (DDP's find_unused_parameters)."""
    recompute: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    """Whether it is compute of forward that is done again in backward, as far as that can be told; nowhere when not
    given."""

    actions: Actions = NO_ACTIONS
    """What a pipeline's schedule did here."""
    receiving: IntervalSet = EMPTY
    """When the host was in a receive, where there is a pipeline."""

    def __post_init__(self) -> None:
        if len(self.launch_ns) != len(self.start_ns):
            object.__setattr__(self, "launch_ns", np.full(len(self.start_ns), UNKNOWN, np.int64))
        if len(self.recompute) != len(self.start_ns):
            object.__setattr__(self, "recompute", np.zeros(len(self.start_ns), np.bool_))

    def __len__(self) -> int:
        return len(self.start_ns)

    def filter(self, chosen: NDArray[np.bool_]) -> Timeline:
        """Keep some of the intervals; steps, names and collectives stay as they are."""
        return replace(self, **{column: getattr(self, column)[chosen] for column in COLUMNS})

    @property
    def on_cpu(self) -> bool:
        """Tell whether the intervals are operators on a CPU, not kernels on a GPU."""
        return self.device < 0

    @property
    def label(self) -> str:
        """Name the GPU: ``rank 0 · GPU 0``, or ``rank 0 · CPU``."""
        return f"rank {self.rank} · " + ("CPU" if self.on_cpu else f"GPU {self.device}")
