"""A model split into stages on the ranks of a pipeline, and its parameters gathered again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from functools import cache

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dptrace.errors import UsageError
from dptrace.record.distributed import check_finite


def _weight(block: nn.Module) -> int:
    """Estimate the work of a block: its parameters without embedding tables, which are only looked up."""
    layers = (layer for layer in block.modules() if not isinstance(layer, nn.Embedding))
    return sum(parameter.numel() for layer in layers for parameter in layer.parameters(recurse=False))


def _groups(model: nn.Sequential) -> list[list[tuple[str, nn.Module]]]:
    """Return the named blocks in groups: one without parameters (a ReLU) joins the group of the previous block."""
    groups: list[list[tuple[str, nn.Module]]] = []
    for name, block in model.named_children():
        if groups and not any(True for _ in block.parameters()):
            groups[-1].append((name, block))
        else:
            groups.append([(name, block)])
    return groups


def _balanced_split(weights: Sequence[int], parts: int) -> list[int]:
    """Return the index at which each part begins, such that the heaviest part is as light as possible."""

    @cache
    def best(first: int, left: int) -> tuple[int, tuple[int, ...]]:
        if left == 1:
            return sum(weights[first:]), (first,)
        ways = []
        for second in range(first + 1, len(weights) - left + 2):
            heaviest, begins = best(second, left - 1)
            ways.append((max(sum(weights[first:second]), heaviest), (first, *begins)))
        return min(ways)

    return list(best(0, parts)[1])


class PipelineStages:
    """This rank's stages of a model, as one module, and the rank that holds each parameter."""

    def __init__(self, stages: Sequence[nn.Sequential], group: dist.ProcessGroup | None) -> None:
        world = dist.group.WORLD if group is None else group
        assert world is not None, "there is no process group yet"
        self.group = world
        rank, self.ranks = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.stages = {number: stages[number] for number in range(rank, len(stages), self.ranks)}
        self.model = nn.ModuleList(self.stages.values())
        self.count = len(stages)
        self._owners = [
            (name, parameter.shape, parameter.dtype, number % self.ranks)
            for number, stage in enumerate(stages)
            for name, parameter in stage.named_parameters()
        ]
        self.parameters = sum(shape.numel() for _, shape, _, _ in self._owners)

    def full_parameters(self) -> dict[str, Tensor]:
        """Gather the parameters of all stages under their names in the whole model; all ranks must call this.

        Raises:
            RecordingError: a parameter is no longer finite.
        """
        local = {name: p.detach() for stage in self.stages.values() for name, p in stage.named_parameters()}
        device = next(self.model.parameters()).device
        gathered = {}
        for name, shape, dtype, owner in self._owners:
            tensor = local[name] if name in local else torch.empty(shape, dtype=dtype, device=device)
            dist.broadcast(tensor, dist.get_global_rank(self.group, owner), group=self.group)
            check_finite(name, not torch.isfinite(tensor).all())
            gathered[name] = tensor
        return gathered


def split_into_stages(
    model: nn.Sequential, virtual_stages: int = 1, group: dist.ProcessGroup | None = None
) -> PipelineStages:
    """Split a model into stages of about equal work, *virtual_stages* for each rank of *group*, assigned in turn.

    Raises:
        UsageError: the model has fewer blocks than stages.
    """
    blocks, count = _groups(model), dist.get_world_size(group) * virtual_stages
    if len(blocks) < count:
        raise UsageError(
            f"This model has {len(blocks)} blocks, too few for {count} stages: use fewer ranks, fewer "
            "--virtual-stages, or a deeper --model."
        )
    begins = _balanced_split([sum(_weight(block) for _, block in part) for part in blocks], count)
    ends = [*begins[1:], len(blocks)]
    stages = [
        nn.Sequential(OrderedDict(named for part in blocks[first:last] for named in part))
        for first, last in zip(begins, ends, strict=True)
    ]
    return PipelineStages(stages, group)
