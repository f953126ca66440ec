"""A decoder whose blocks have experts instead of an MLP, and its parameters gathered again."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dptrace.record import Options
from dptrace.record.ranks.distributed import check_finite
from dptrace.trainers.parts.experts.exchange import Peers
from dptrace.trainers.parts.experts.mixture import Experts
from dptrace.trainers.parts.experts.settings import MixtureRanks, MixtureSettings
from dptrace.trainers.parts.models.gpt import Block

__all__ = ["BALANCE", "Mixtures", "full_parameters", "is_expert", "use_experts"]

BALANCE = 0.01
"""Weight of the load-balancing loss in the total loss."""
_EXPERT = re.compile(r"(.*\.experts\.)(\d+)(\..*)")
"""Name of a parameter of one expert."""


@dataclass
class Mixtures:
    """The mixtures of a model, one for each of its blocks."""

    layers: list[Experts]
    counters: dict[str, Tensor]
    """``expert_load``, and with a capacity ``expert_dropped``: (layers, experts), over all steps and ranks."""

    def counters_of(self, stage: nn.Module) -> dict[str, Any]:
        """Return the layers of a stage of the model, which follow each other, and views of their counters."""
        modules = set(stage.modules())
        own = [number for number, mixture in enumerate(self.layers) if mixture in modules]
        return {"layers": own} | {name: table[own[0] : own[-1] + 1] for name, table in self.counters.items() if own}

    def add_losses(self, weight: Callable[[], float]) -> None:
        """Add the gradients of the load-balancing losses, times a weight, to those of the blocks' outputs."""
        for mixture in self.layers:
            mixture.loss_weight = weight


def is_expert(name: str) -> bool:
    """Return whether a parameter belongs to one of the experts that ranks share out, by its name."""
    return _EXPERT.fullmatch(name) is not None


def use_experts(model: nn.Sequential, options: Options, ranks: MixtureRanks, device: torch.device) -> Mixtures:
    """Replace the MLP of each block, in place, by this rank's share of a mixture of experts."""
    settings = MixtureSettings(options.experts, options.top_k, options.capacity_factor, options.shared_experts)
    layers = []
    for number, block in enumerate(model.children()):
        if isinstance(block, Block):
            mixture = Experts(block.mlp_norm.normalized_shape[0], settings, ranks, f"{number}.mlp")
            block.mlp = mixture.to(device, getattr(torch, options.dtype))
            layers.append(mixture)
    counters = torch.zeros(2, len(layers), options.experts, dtype=torch.int64, device=device)
    for number, mixture in enumerate(layers):
        mixture.load, mixture.dropped = counters[:, number]  # views: their counts appear in the table
    names = ("expert_load", "expert_dropped") if options.capacity_factor is not None else ("expert_load",)
    return Mixtures(layers, dict(zip(names, counters, strict=False)))


def full_parameters(parameters: Mapping[str, Tensor], peers: Peers, experts: int) -> dict[str, Tensor]:
    """Return parameters with those of all experts; the ranks that share them out must all call this.

    Args:
        parameters: of this rank, by name.
        experts: of a block, over all ranks.

    Raises:
        RecordingError: a parameter is no longer finite.
    """
    gathered = {name: parameter.detach() for name, parameter in parameters.items()}
    own = [match for name in gathered if (match := _EXPERT.fullmatch(name))]
    local = experts // peers.size
    for match in own:
        # Each rank has an expert at this place among its own.
        place = int(match[2]) % local
        for owner in range(peers.size if peers.group is not None else 1):
            name = f"{match[1]}{owner * local + place}{match[3]}"
            tensor = gathered[name] if owner == peers.rank else torch.empty_like(gathered[match[0]])
            if peers.group is not None:
                dist.broadcast(tensor, dist.get_global_rank(peers.group, owner), group=peers.group)
            check_finite(name, not torch.isfinite(tensor).all())
            gathered[name] = tensor
    return gathered
