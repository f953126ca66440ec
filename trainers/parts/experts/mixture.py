"""A mixture of experts instead of a block's MLP: a router sends each token to the experts with the highest scores.

::

    tokens of rank 0  a b c d ──dispatch──► expert 0 on rank 0: a, c and rank 1's f ──combine──► a' b' c' d'
    tokens of rank 1  e f g h ──dispatch──► expert 1 on rank 1: b, d and rank 1's e, g, h ─────► e' f' g' h'

With a capacity, an expert drops the tokens that it has no room for: they get nothing from it, and their block passes
them on. Shared experts get all tokens of their rank, and compute while tokens travel.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.profiler import record_function

from dptrace.record.ranks.distributed import at_least_float32
from dptrace.trainers.parts.communication.collectives import all_gather
from dptrace.trainers.parts.experts.added_loss import with_loss
from dptrace.trainers.parts.experts.exchange import Exchange
from dptrace.trainers.parts.experts.routing import capacity_of, choice_counts, has_room, kept_counts
from dptrace.trainers.parts.experts.settings import MixtureRanks, MixtureSettings
from dptrace.trainers.parts.models.gpt import FeedForward

__all__ = ["Experts"]


class Experts(nn.Module):
    """A router and this rank's share of the experts, whose number is divisible by the ranks that share them.

    Args:
        width: of a token.
        label: the block's name, for the trace.
    """

    load: Tensor
    """Tokens that have chosen each expert so far, over all ranks."""
    dropped: Tensor
    """Of them, those that it has dropped."""

    def __init__(self, width: int, settings: MixtureSettings, ranks: MixtureRanks, label: str) -> None:
        super().__init__()
        self.settings, self.ranks, self.label = settings, ranks, label
        self.router = nn.Linear(width, settings.experts, bias=False)
        self.local = settings.experts // ranks.experts.size
        # All are built and few kept, so that an expert's parameters do not depend on the number of ranks.
        experts = [FeedForward(width) for _ in range(settings.experts)]
        numbers = range(ranks.experts.rank * self.local, (ranks.experts.rank + 1) * self.local)
        self.experts = nn.ModuleDict({str(number): experts[number] for number in numbers})
        self.shared = nn.ModuleList(FeedForward(width) for _ in range(settings.shared))
        self.balance = torch.zeros(())
        """Load-balancing loss of the last forward: 1 if all experts get the same share, else more."""
        self.loss_weight: Callable[[], float] | None = None
        """Weight of the load-balancing loss, if its gradient is to be added here and not by the loss of the model."""
        self.load, self.dropped = torch.zeros(2, settings.experts, dtype=torch.int64)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)
        probability = at_least_float32(self.router(tokens)).softmax(-1)
        chosen = self._choose(probability)
        weight = probability.gather(-1, chosen)
        weight = weight / weight.sum(-1, keepdim=True)
        counts = self._gather_counts(choice_counts(chosen, self.settings.experts))
        capacity = capacity_of(self.settings.capacity_factor, chosen.numel() * len(counts), self.settings.experts)
        self._update_load(counts.sum((0, 1)), probability, capacity)

        ours = self._of_expert_peers(kept_counts(counts, capacity))
        sent = ours[self.ranks.experts.rank].view(-1, self.local).sum(1).tolist()
        local_counts = ours.view(len(ours), -1, self.local)[:, self.ranks.experts.rank]
        received = local_counts.sum(1).tolist()
        room = has_room(chosen, counts, self.ranks.tokens.rank, capacity)
        # What is dropped comes last, and is cut off.
        order = chosen.where(room, self.settings.experts).flatten().argsort(stable=True)[: sum(sent)]

        dispatch = Exchange(self.ranks.experts, sent, received, f"MoE::dispatch ({self.label})")
        combine = Exchange(self.ranks.experts, received, sent, f"MoE::combine ({self.label})")
        travelling = dispatch.start(tokens[order // self.settings.top_k])
        shared = [expert(tokens) for expert in self.shared]
        outputs = combine.run(self._run_local_experts(dispatch.finish(travelling), local_counts))

        sorted_back = outputs.new_zeros(chosen.numel(), tokens.shape[-1]).index_copy(0, order, outputs)
        mixed = (sorted_back.view(*chosen.shape, -1) * weight.unsqueeze(-1).to(outputs.dtype)).sum(1)
        return with_loss(sum(shared, mixed).view_as(x), self.balance, self.loss_weight)

    def _choose(self, probability: Tensor) -> Tensor:
        """Return the experts of each token, best first: (tokens, top_k)."""
        chosen = probability.topk(self.settings.top_k).indices
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

    def _of_expert_peers(self, counts: Tensor) -> Tensor:
        """Return the rows of the ranks that share out the same experts."""
        first = self.ranks.tokens.rank - self.ranks.experts.rank
        return counts[first : first + self.ranks.experts.size]

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
        self.balance = self.settings.experts * (total / total.sum() * probability.mean(0)).sum()
