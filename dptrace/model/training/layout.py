"""How a training is spread over GPUs: degrees of data, tensor, pipeline and expert parallelism, and what is sharded."""

from __future__ import annotations

import math

import msgspec

from dptrace.core.units import plural
from dptrace.errors import UsageError

__all__ = ["STRATEGIES", "Layout", "ranks_per_node", "strategy_layout"]

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
_ZERO = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3, "hsdp": 3}
"""The stage of ZeRO that a strategy is."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """Degrees of parallelism; ranks are numbered tensor first, then data, then pipeline, as in Megatron-LM."""

    strategy: str
    data: int = 1
    tensor: int = 1
    stages: int = 1
    expert: int = 1
    """GPUs of a data-parallel group over which the experts are spread."""
    zero: int = 0
    """0 to 3: nothing, optimizer state, gradients, parameters are sharded."""
    shards: int = 1
    """GPUs over which they are sharded: all of a data-parallel group, or those on a node."""
    sequence: bool = False
    """Whether the tokens are split where layers are not."""
    schedule: str = "1f1b"
    virtual_stages: int = 1

    @property
    def gpus(self) -> int:
        """Return the number of GPUs."""
        return self.data * self.tensor * self.stages

    @property
    def name(self) -> str:
        """Return the strategy with its degrees, such as ``3d tp8 pp4 dp2``."""
        degrees = (("tp", self.tensor), ("pp", self.stages), ("ep", self.expert), ("dp", self.data))
        several = " ".join(f"{name}{degree}" for name, degree in degrees if degree > 1)
        replicas_only = self.gpus == self.data and self.strategy not in ("tp", "pp", "ep", "3d")
        return self.strategy if replicas_only else f"{self.strategy} {several}".strip()


def ranks_per_node(stride: int, size: int, gpus_per_node: int) -> int:
    """Return how many of a group's ranks are on one node, where they are *stride* ranks apart.

    >>> ranks_per_node(1, 8, 8), ranks_per_node(8, 4, 8), ranks_per_node(2, 16, 8)
    (8, 1, 4)
    """
    return max(1, min(size, gpus_per_node // stride))


def strategy_layout(
    strategy: str,
    gpus: int,
    *,
    gpus_per_node: int = 8,
    tensor: int | None = None,
    stages: int | None = None,
    expert: int | None = None,
    zero: int | None = None,
    shards: int | None = None,
    experts: int = 1,
    sequence: bool | None = None,
    schedule: str = "1f1b",
    virtual_stages: int = 1,
) -> Layout:
    """Return the layout of a strategy on a number of GPUs; degrees that are not given have usual values.

    Args:
        shards: GPUs that share a copy of the parameters, where they are sharded.
        experts: MLPs in a layer of the model.
        sequence: split the tokens too; by default where layers are split over GPUs (``tp`` and ``3d``).

    Raises:
        UsageError: the degrees do not divide the number of GPUs, or do not belong to the strategy.
    """
    if strategy not in STRATEGIES:
        raise UsageError(f"--strategy {strategy}: choose from {', '.join(STRATEGIES)}.")
    node = math.gcd(gpus, gpus_per_node) if gpus > gpus_per_node else gpus
    split = strategy in ("tp", "3d")
    tensor = tensor or (node if split else 1)
    if stages is None:
        stages = {"pp": node, "3d": max(1, min(4, gpus // tensor))}.get(strategy, 1)
    if gpus % (tensor * stages):
        raise UsageError(f"{plural(gpus, 'GPU')} can't be divided into tp {tensor} × pp {stages}.")
    data = gpus // (tensor * stages)
    expert = (expert or math.gcd(experts, data)) if strategy == "ep" or expert else 1
    if data % expert or experts % expert:
        raise UsageError(f"{plural(experts, 'expert')} can't be spread over {expert} of {data} data-parallel GPUs.")
    stage = _zero_stage(strategy, zero)
    return Layout(
        strategy=strategy,
        data=data,
        tensor=tensor,
        stages=stages,
        expert=expert,
        zero=stage,
        shards=_shards(strategy, stage, data, node, shards),
        sequence=(split and tensor > 1) if sequence is None else sequence,
        schedule=schedule,
        virtual_stages=virtual_stages,
    )


def _zero_stage(strategy: str, given: int | None) -> int:
    own = _ZERO.get(strategy)
    if given is not None and own not in (None, given):
        what = f"is ZeRO stage {own}" if own else "shards nothing"
        raise UsageError(f"--strategy {strategy} {what}: leave --zero {given} out, or the strategy.")
    usual = 1 if strategy == "3d" else 0
    return given if given is not None else usual if own is None else own


def _shards(strategy: str, stage: int, data: int, node: int, given: int | None) -> int:
    """Return the GPUs that share a copy: the given number, else those of a node for hsdp, and all for others."""
    if given is None:
        return 1 if not stage else math.gcd(data, node) if strategy == "hsdp" else data
    if stage < 3 or (strategy in ("fsdp", "zero3") and given != data):
        raise UsageError(f"--shards {given}: is for parameters sharded in groups; add --strategy hsdp, or --zero 3.")
    if data % given:
        raise UsageError(f"--shards {given}: must divide the {data} data-parallel GPUs.")
    return given
