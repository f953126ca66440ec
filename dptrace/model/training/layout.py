"""How a training is spread over GPUs: degrees of data, tensor, pipeline and expert parallelism, and what is sharded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from dptrace.core.checks import rank_entries

STRATEGIES = {
    "ddp": "every GPU holds the whole model",
    "zero1": "optimizer state is sharded",
    "zero2": "gradients too",
    "zero3": "parameters too",
    "fsdp": "the same as zero3, as PyTorch does it",
    "hsdp": "sharded within a node, replicated across nodes",
    "tp": "layers are split within a node, the batch across nodes",
    "pp": "layers are assigned to stages, the batch is split over the rest",
    "ep": "experts are spread over the GPUs, everything else is replicated",
    "3d": "tensor parallel within a node, stages across nodes, and data parallel with a sharded optimizer",
}
"""Strategies by name, each with its idea."""
SHARDED = {0: "DDP", 1: "ZeRO-1", 2: "ZeRO-2", 3: "FSDP"}
"""What data parallelism is called by its stage of ZeRO."""
_SCHEDULE_MARKS = {"gpipe": " GPipe", "zero-bubble": " zb"}


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Degrees of parallelism; ranks are numbered tensor first, then context, data, pipeline, as in Megatron-LM."""

    strategy: str
    data: int = 1
    """GPUs with samples of their own."""
    tensor: int = 1
    context: int = 1
    """GPUs that share the tokens of a sample, and pass keys and values around in a ring."""
    stages: int = 1
    expert: int = 1
    """GPUs over which the experts are spread."""
    expert_tensor: int = 0
    """GPUs that split each expert; 0: those that split each layer."""
    zero: int = 0
    """0 to 3: nothing, optimizer state, gradients, parameters are sharded."""
    shards: int = 1
    """GPUs over which they are sharded: all with the same parameters, or those on a node."""
    sequence: bool = False
    """Whether the tokens are split where layers are not."""
    schedule: str = "1f1b"
    virtual_stages: int = 1

    @property
    def gpus(self) -> int:
        """Return the number of GPUs."""
        return self.replicas * self.tensor * self.stages

    @property
    def replicas(self) -> int:
        """Return the GPUs with the same parameters, but for what is sharded: those of data and context."""
        return self.data * self.context

    @property
    def expert_split(self) -> int:
        """Return the GPUs that split each expert: fewer than a layer's where experts are spread over these, too."""
        return self.expert_tensor or self.tensor

    @property
    def expert_replicas(self) -> int:
        """Return the GPUs that hold the same experts."""
        return self.replicas * self.tensor // (self.expert_split * self.expert)

    def holds_experts(self, replicas: int) -> bool:
        """Return whether so many replicas could share out the experts in the same way."""
        return replicas * self.tensor % (self.expert_split * self.expert) == 0

    @property
    def expert_shards(self) -> int:
        """Return the GPUs over which the state of an expert is sharded, of those that share all other parameters."""
        return max(1, self.shards * self.tensor // (self.expert_split * self.expert))

    @property
    def reduced_together(self) -> int:
        """Return how many micro-batches' gradients ZeRO-2 adds up before it scatters them.

        A GPU that keeps a shard of the gradients can't add up whole ones, so it reduces each micro-batch by itself. In
        an interleaved pipeline as many micro-batches as stages run through a virtual stage one after the other, and its
        gradients alone are held until then, as in the training of Llama 3 (arXiv 2407.21783, section 3.3.2).
        """
        return self.stages if self.schedule == "interleaved" else 1

    @property
    def name(self) -> str:
        """Return the degrees in words; ``PP 4 v2`` has two stages on each GPU, ``PP 4 zb`` delays weight gradients.

        >>> Layout(strategy="3d", data=2, tensor=8, stages=4, zero=1, shards=2).name
        'TP 8 × PP 4 × ZeRO-1 ×2'
        """
        parts = [f"TP {self.tensor}"] if self.tensor > 1 else []
        if self.stages > 1:
            several = f" v{self.virtual_stages}" if self.virtual_stages > 1 else ""
            parts.append(f"PP {self.stages}{several}" + _SCHEDULE_MARKS.get(self.schedule, ""))
        parts += [f"CP {self.context}"] if self.context > 1 else []
        parts += [f"EP {self.expert}"] if self.expert > 1 else []
        if self.replicas > 1 and (self.zero or self.data > 1):
            hybrid = self.zero == 3 and self.shards < self.replicas
            copies = f"HSDP {self.shards}×{self.replicas // self.shards}"
            parts.append(copies if hybrid else f"{SHARDED[self.zero]} ×{self.replicas if self.zero else self.data}")
        return " × ".join(parts) or "one GPU"


def can_be_cut(layers: int, stages: int, virtual_stages: int) -> bool:
    """Return whether a model has enough layers for a pipeline.

    Interleaved, embedding and head may each be a stage of their own: Llama 3 405B has 126 layers in 16 × 8 stages
    (arXiv 2407.21783, section 3.3.2).

    >>> can_be_cut(126, 16, 8), can_be_cut(126, 128, 1)
    (True, False)
    """
    return stages * virtual_stages <= (layers + 2 if virtual_stages > 1 else layers)


def ranks_per_node(stride: int, size: int, gpus_per_node: int) -> int:
    """Return how many of a group's ranks are on one node, where they are *stride* ranks apart.

    >>> ranks_per_node(1, 8, 8), ranks_per_node(8, 4, 8), ranks_per_node(2, 16, 8)
    (8, 1, 4)
    """
    return max(1, min(size, gpus_per_node // stride))


# Pipelines: the bubble of each schedule, and how many micro-batches' activations a stage keeps.


SCHEDULES = ("gpipe", "1f1b", "interleaved", "zero-bubble")


def bubble_share(schedule: str, stages: int, micro_batches: int, virtual_stages: int = 1) -> float | None:
    """Return the bubble's share of the time for stages that take equally long, or None without a formula.

    With p ranks, m micro-batches and v stages on each rank, a step's work takes m·v times a stage's, and the first
    micro-batch takes p-1 stages' time to reach the last: (p-1)/(m·v+p-1) (GPipe, arXiv:1811.06965; Megatron-LM,
    arXiv:2104.04473, section 2.2). With deferred weight gradients, the bubble is p-1 against 3·m·v parts of equal
    length (ZB-H1 in table 1 of arXiv:2401.10241, where forward and both parts of backward take equally long).

    >>> bubble_share("1f1b", 4, 12), bubble_share("interleaved", 4, 12, 2), bubble_share("v-shaped", 4, 12, 2)
    (0.2, 0.1111111111111111, None)
    """
    parts = {
        "naive": 1,
        "gpipe": micro_batches,
        "1f1b": micro_batches,
        "forward-only": micro_batches,
        "interleaved": micro_batches * virtual_stages,
        "zero-bubble": 3 * micro_batches * virtual_stages,
    }.get(schedule)
    return None if parts is None else (stages - 1) / (parts + stages - 1)


def micro_batches_in_flight(schedule: str, stages: int, micro_batches: int, virtual_stages: int = 1) -> float:
    """Return how many micro-batches' activations of all its layers the first stage keeps at most.

    GPipe keeps all; 1F1B one for each stage (Megatron-LM, section 2.2.1); interleaved 1F1B ``p + (p-1)/v`` (Korthikanti
    et al., arXiv 2205.05198, section 4.2.3); ZB-H1 as many as 1F1B. None keeps more than there are.

    >>> micro_batches_in_flight("gpipe", 4, 32), micro_batches_in_flight("1f1b", 4, 32)
    (32, 4)
    """
    if schedule == "gpipe" or stages == 1:
        return micro_batches if stages > 1 else 1
    if schedule == "interleaved":
        return min(micro_batches, stages + (stages - 1) / virtual_stages)
    return min(micro_batches, stages)


def held_by_rank(schedule: str, ranks: int, rank: int, micro_batches: int, virtual_stages: int = 1) -> int | None:
    """Return how many micro-batches' activations a rank holds at most, each counted once for each of its stages.

    With p ranks, rank r runs p-r-1 forwards before its first backward in 1F1B (Megatron-LM, arXiv:2104.04473, section
    2.2.1), and (v-1)·p + 2·(p-r-1) in its interleaved form (section 2.2.2). ZB-H1 runs p-r-1, and delays the gradients
    of the weights until every rank holds p (arXiv:2401.10241, section 2.3). None for another schedule.

    >>> [held_by_rank("1f1b", 4, rank, 8) for rank in range(4)]
    [4, 3, 2, 1]
    >>> [held_by_rank("interleaved", 4, rank, 8, 2) for rank in range(4)]
    [11, 9, 7, 5]
    """
    later = ranks - rank - 1
    # With a number of micro-batches that ranks does not divide, torch makes the rounds longer.
    rounds = (virtual_stages - 1) * (micro_batches // max(1, micro_batches // ranks))
    held = {
        "naive": 1,
        "gpipe": micro_batches * virtual_stages,
        "1f1b": later + 1,
        "interleaved": rounds + 2 * later + 1,
        "zero-bubble": rounds + ranks,
    }.get(schedule)
    return None if held is None else min(held, micro_batches * virtual_stages)


def micro_batches_needed(schedule: str, stages: int, bubble: float, virtual_stages: int = 1) -> int:
    """Return the fewest micro-batches with which the bubble is at most a share of the time.

    >>> micro_batches_needed("1f1b", 4, 0.1), micro_batches_needed("interleaved", 4, 0.1, 3)
    (27, 9)
    """
    parts = {"interleaved": virtual_stages, "zero-bubble": 3 * virtual_stages}.get(schedule, 1)
    exact = (stages - 1) * (1 - bubble) / bubble / parts
    return max(1, round(exact) if abs(exact - round(exact)) < 1e-9 else int(exact) + 1)


# The activations that the ranks of a recorded pipeline held, next to what its schedule predicts.


class HeldActivations(msgspec.Struct, frozen=True):
    """What one rank held at most, in one step."""

    rank: int
    """In the job."""
    schedule: str
    place: int
    """The rank's number in its pipeline."""
    stages: int
    """How many stages it has."""
    micro_batches: int
    """Held at once; one counts once for each of the rank's stages."""
    expected: int | None
    """The same by the schedule; None for a schedule without a formula."""
    bytes: int | None
    """What autograd kept for the backward of these micro-batches; None where it was not measured."""

    def to_dict(self) -> dict[str, int | None]:
        """Return what was held and what was expected, as plain data."""
        return {"micro_batches": self.micro_batches, "expected_micro_batches": self.expected, "bytes": self.bytes}


def held_activations(metadata: Mapping[str, Any]) -> tuple[HeldActivations, ...]:
    """Return what each rank held, in the order of run.json; empty for runs of other modes, or without such entries.

    Args:
        metadata: the contents of run.json, which may be malformed.
    """
    of_ranks = (_of_rank(entry.get("rank"), entry.get("pipeline")) for entry in rank_entries(metadata))
    return tuple(held for held in of_ranks if held is not None)


def _of_rank(rank: object, found: object) -> HeldActivations | None:
    if not isinstance(found, dict) or not isinstance(found.get("stages"), list) or not found["stages"]:
        return None
    numbers = [rank, *(found.get(key) for key in ("in_flight", "ranks", "rank", "micro_batches"))]
    if not all(type(number) is int and number >= 0 for number in numbers):
        return None
    schedule, size, stages = str(found.get("schedule")), found.get("in_flight_bytes"), len(found["stages"])
    expected = held_by_rank(schedule, found["ranks"], found["rank"], found["micro_batches"], stages)
    size = size if type(size) is int and size >= 0 else None
    return HeldActivations(int(str(rank)), schedule, found["rank"], stages, found["in_flight"], expected, size)
