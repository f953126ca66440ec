"""A decoder whose blocks have experts instead of an MLP, and its parameters gathered again."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import one_hot
from torch.profiler import record_function

from dptrace.record import Options
from dptrace.record.distributed import at_least_float32, check_finite
from dptrace.trainers.parts.collectives import all_gather, custom_gradient, unchanged
from dptrace.trainers.parts.models import Block, FeedForward

# Rows that travel between ranks in one all-to-all while other work goes on, and their gradients on the way back.
#
# ::
#
#     forward    start ── rows travel ──► finish        backward    finish ── gradients travel ──► start
#                   └─ anything else ─┘                                 └─ its backward ─┘
#
# Autograd runs the backward of what was computed between the two while the gradients travel: it takes the nodes of its
# graph in the opposite order of their creation.


@dataclass(frozen=True)
class Peers:
    """The ranks of a group, as one of them sees them; without a group, a rank alone."""

    group: dist.ProcessGroup | None = None
    rank: int = 0
    size: int = 1

    @classmethod
    def of(cls, group: dist.ProcessGroup) -> Peers:
        """Return the ranks of a process group."""
        return cls(group, dist.get_rank(group), dist.get_world_size(group))


ALONE = Peers()


class Exchange:
    """One all-to-all of rows, which has a rank for each part of them, and that of their gradients.

    Args:
        sent, received: how many rows go to each rank, and come from it.
        label: its name in the trace.
    """

    def __init__(self, peers: Peers, sent: list[int], received: list[int], label: str) -> None:
        self.peers, self.label = peers, label
        self.counts = sent, received
        self._work: dist.Work | None = None
        self._rows: tuple[Tensor, Tensor] | None = None
        """Those on their way, which must live as long, and where others arrive."""

    def start(self, rows: Tensor) -> Tensor:
        """Send the rows, and return where others arrive; only :meth:`finish` may read that."""
        return custom_gradient(rows, lambda rows: unchanged(self.begin(rows)), lambda _: self.end())

    def finish(self, buffer: Tensor) -> Tensor:
        """Wait for the rows of other ranks, and return them."""
        return custom_gradient(buffer, lambda _: unchanged(self.end()), self._send_back)

    def _send_back(self, gradients: Tensor) -> Tensor:
        self.begin(gradients, back=True)
        return gradients  # of the buffer's shape, as autograd wants it; the exchange has the gradients

    def begin(self, rows: Tensor, back: bool = False) -> Tensor:
        """Start the all-to-all, and return where rows arrive."""
        if self.peers.size == 1:
            self._rows = rows, rows
            return rows
        sent, received = self.counts[::-1] if back else self.counts
        rows, buffer = rows.contiguous(), rows.new_empty(sum(received), *rows.shape[1:])
        with record_function(self.label):
            self._work = dist.all_to_all_single(buffer, rows, received, sent, group=self.peers.group, async_op=True)
        self._rows = rows, buffer
        return buffer

    def end(self) -> Tensor:
        """Wait for the all-to-all, and return the rows that have arrived."""
        assert self._rows is not None, "nothing travels"
        if self._work is not None:
            self._work.wait()
        arrived, self._work, self._rows = self._rows[1], None, None
        return arrived


# Which tokens an expert has room for, and how many each rank sends to it.
#
# An expert takes at most its capacity of the tokens that chose it. All ranks' tokens stand in one queue: first choices
# before second ones, as in GShard (arXiv:2006.16668), then the tokens of lower ranks, then earlier tokens. So the same
# tokens are dropped on any number of ranks.


def capacity_of(factor: float | None, choices: int, experts: int) -> int:
    """Return how many tokens an expert takes: *factor* times an even share of the choices, rounded up.

    Args:
        factor: the capacity factor; None for no limit.
        choices: tokens of all ranks times the experts that each one chooses.

    >>> capacity_of(1.25, 64, 8), capacity_of(None, 64, 8)
    (10, 64)
    """
    return choices if factor is None else math.ceil(round(factor * choices / experts, 6))


def choice_counts(chosen: Tensor, experts: int) -> Tensor:
    """Return how many tokens chose each expert as their first, second … choice: (top_k, experts).

    Args:
        chosen: the experts of each token, best first: (tokens, top_k).
    """
    places = torch.arange(chosen.shape[1], device=chosen.device) * experts
    return torch.bincount((chosen + places).flatten(), minlength=chosen.shape[1] * experts).view(-1, experts)


def _before(counts: Tensor) -> Tensor:
    """Return how many choices of an expert stand before those of a rank: (ranks, top_k, experts), like *counts*."""
    in_order = counts.transpose(0, 1)
    flat = in_order.flatten(0, 1)
    return (flat.cumsum(0) - flat).view_as(in_order).transpose(0, 1)


def kept_counts(counts: Tensor, capacity: int) -> Tensor:
    """Return how many of the choices each expert takes: (ranks, experts).

    Args:
        counts: of each rank, as in :func:`choice_counts`: (ranks, top_k, experts).
    """
    return torch.minimum((capacity - _before(counts)).clamp(min=0), counts).sum(1)


def has_room(chosen: Tensor, counts: Tensor, rank: int, capacity: int) -> Tensor:
    """Return for each choice of this rank's tokens whether the expert takes it, as a mask like *chosen*."""
    # A token's place in the queue of its expert: what other ranks and choices have before this rank's, and this rank's
    # own earlier tokens. Choices a b a of the same rank have the places 0 0 1, moved by what stands before them.
    own = one_hot(chosen, counts.shape[-1])
    place = (_before(counts)[rank] + own.cumsum(0) - own).gather(-1, chosen.unsqueeze(-1)).squeeze(-1)
    return place < capacity


# The experts of a block, and the ranks that compute them.


@dataclass(frozen=True)
class MixtureRanks:
    """The ranks that compute a mixture."""

    tokens: Peers = ALONE
    """Ranks with different tokens; those that share out the experts are consecutive among them."""
    experts: Peers = ALONE
    """Ranks that share out the experts."""
    tensor: Peers = ALONE
    """Ranks that split each expert, and have the same tokens."""


# A loss whose gradient is added where it arises, for stages of a pipeline, which do not see the model's loss.


class _WithLoss(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, loss: Tensor, weight: Callable[[], float]) -> Tensor:
        context.weight, context.like = weight, loss.new_empty(())
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        return gradients[0], torch.full_like(context.like, context.weight()), None


def with_loss(x: Tensor, loss: Tensor, weight: Callable[[], float] | None) -> Tensor:
    """Return x; its backward also adds the gradient of *loss* times *weight*, which is asked for then; None adds none.

    Args:
        loss: a number.
    """
    if weight is None:
        return x
    return _WithLoss.apply(x, loss, weight)


# A mixture of experts instead of a block's MLP: a router sends each token to the experts with the highest scores.
#
# ::
#
#     tokens of rank 0  a b c d ──dispatch──► expert 0 on rank 0: a, c and rank 1's f ──combine──► a' b' c' d'
#     tokens of rank 1  e f g h ──dispatch──► expert 1 on rank 1: b, d and rank 1's e, g, h ─────► e' f' g' h'
#
# With a capacity, an expert drops the tokens that it has no room for: they get nothing from it, and their block passes
# them on. Shared experts get all tokens of their rank, and compute while tokens travel.


class Experts(nn.Module):
    """A router and this rank's share of the experts, whose number is divisible by the ranks that share them.

    Args:
        width: of a token.
        options: ``experts`` of a block over all ranks, ``top_k``, ``capacity_factor``, ``shared_experts``.
        label: the block's name, for the trace.
    """

    load: Tensor
    """Tokens that have chosen each expert so far, over all ranks."""
    dropped: Tensor
    """Of them, those that it has dropped."""

    def __init__(self, width: int, options: Options, ranks: MixtureRanks, label: str) -> None:
        super().__init__()
        self.options, self.ranks, self.label = options, ranks, label
        self.router = nn.Linear(width, options.experts, bias=False)
        self.local = options.experts // ranks.experts.size
        # All are built and few kept, so that an expert's parameters do not depend on the number of ranks.
        experts = [FeedForward(width) for _ in range(options.experts)]
        numbers = range(ranks.experts.rank * self.local, (ranks.experts.rank + 1) * self.local)
        self.experts = nn.ModuleDict({str(number): experts[number] for number in numbers})
        self.shared = nn.ModuleList(FeedForward(width) for _ in range(options.shared_experts))
        self.balance = torch.zeros(())
        """Load-balancing loss of the last forward: 1 if all experts get the same share, else more."""
        self.loss_weight: Callable[[], float] | None = None
        """Weight of the load-balancing loss, if its gradient is to be added here and not by the loss of the model."""
        self.load, self.dropped = torch.zeros(2, options.experts, dtype=torch.int64)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)
        probability = at_least_float32(self.router(tokens)).softmax(-1)
        chosen = self._choose(probability)
        weight = probability.gather(-1, chosen)
        weight = weight / weight.sum(-1, keepdim=True)
        counts = self._gather_counts(choice_counts(chosen, self.options.experts))
        capacity = capacity_of(self.options.capacity_factor, chosen.numel() * len(counts), self.options.experts)
        self._update_load(counts.sum((0, 1)), probability, capacity)

        first = self.ranks.tokens.rank - self.ranks.experts.rank  # of the ranks that share out the same experts
        ours = kept_counts(counts, capacity)[first : first + self.ranks.experts.size]
        sent = ours[self.ranks.experts.rank].view(-1, self.local).sum(1).tolist()
        local_counts = ours.view(len(ours), -1, self.local)[:, self.ranks.experts.rank]
        received = local_counts.sum(1).tolist()
        room = has_room(chosen, counts, self.ranks.tokens.rank, capacity)
        # What is dropped comes last, and is cut off.
        order = chosen.where(room, self.options.experts).flatten().argsort(stable=True)[: sum(sent)]

        dispatch = Exchange(self.ranks.experts, sent, received, f"MoE::dispatch ({self.label})")
        combine = Exchange(self.ranks.experts, received, sent, f"MoE::combine ({self.label})")
        travelling = dispatch.start(tokens[order // self.options.top_k])
        shared = [expert(tokens) for expert in self.shared]
        computed = self._run_local_experts(dispatch.finish(travelling), local_counts)
        outputs = combine.finish(combine.start(computed))

        sorted_back = outputs.new_zeros(chosen.numel(), tokens.shape[-1]).index_copy(0, order, outputs)
        mixed = (sorted_back.view(*chosen.shape, -1) * weight.unsqueeze(-1).to(outputs.dtype)).sum(1)
        return with_loss(sum(shared, mixed).view_as(x), self.balance, self.loss_weight)

    def _choose(self, probability: Tensor) -> Tensor:
        """Return the experts of each token, best first: (tokens, top_k)."""
        chosen = probability.topk(self.options.top_k).indices
        if self.ranks.tensor.size > 1:
            # Ranks that split the experts must agree, also where rounding makes two scores change places.
            group = self.ranks.tensor.group
            assert group is not None
            with record_function(f"MoE::choices ({self.label})"):
                dist.broadcast(chosen, dist.get_global_rank(group, 0), group=group)
        return chosen

    def _gather_counts(self, counts: Tensor) -> Tensor:
        """Return the counts of choices of all ranks with other tokens: (ranks, top_k, experts)."""
        if self.ranks.tokens.size == 1:
            return counts.unsqueeze(0)
        gathered = counts.new_empty(self.ranks.tokens.size * len(counts), counts.shape[1])
        with record_function(f"MoE::counts ({self.label})"):
            all_gather(gathered, counts, group=self.ranks.tokens.group)
        return gathered.view(-1, *counts.shape)

    def _run_local_experts(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Apply each expert to its rows, which are ordered by rank and, within a rank, by expert."""
        owner = torch.arange(self.local, device=rows.device).repeat(len(counts)).repeat_interleave(counts.flatten())
        outputs = rows.new_empty(rows.shape)
        for number, expert in enumerate(self.experts.values()):
            chosen = (owner == number).nonzero().squeeze(-1)
            outputs = outputs.index_copy(0, chosen, expert(rows[chosen]).to(rows.dtype))
        return outputs

    def _update_load(self, total: Tensor, probability: Tensor, capacity: int) -> None:
        """Compute the load-balancing loss E·Σ fᵢ·Pᵢ, share of tokens times mean probability (Switch Transformer, 2021).

        The shares are taken over all ranks, so that the mean of the ranks' losses is the loss of the whole batch.
        """
        recomputed = torch._C._current_graph_task_id() >= 0  # by activation checkpointing, in backward
        if torch.is_grad_enabled() and not recomputed:
            self.load += total
            self.dropped += (total - capacity).clamp(min=0)
        self.balance = self.options.experts * (total / total.sum() * probability.mean(0)).sum()


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
    layers = []
    for number, block in enumerate(model.children()):
        if isinstance(block, Block):
            mixture = Experts(block.mlp_norm.normalized_shape[0], options, ranks, f"{number}.mlp")
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
    own = [match for match in map(_EXPERT.fullmatch, gathered) if match]
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
