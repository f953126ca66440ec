"""A mixture of experts instead of a block's MLP: a router sends each token to the experts with the highest scores.

::

    tokens of rank 0  a b c d ──dispatch──► expert 0 on rank 0: a, c and rank 1's f ──combine──► a' b' c' d'
    tokens of rank 1  e f g h ──dispatch──► expert 1 on rank 1: b, d and rank 1's e, g, h ─────► e' f' g' h'

No token is dropped: an expert takes all tokens that it is sent, so the result is that of a single process.
"""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.profiler import record_function

from dptrace.record import World
from dptrace.record.distributed import at_least_float32, check_finite
from dptrace.trainers.parts.gpt import FeedForward
from dptrace.trainers.parts.regions import custom_gradient

__all__ = ["Experts", "full_parameters"]


def _all_to_all(rows: Tensor, sent: list[int], received: list[int], name: str) -> Tensor:
    output = rows.new_empty(sum(received), *rows.shape[1:])
    with record_function(name):
        dist.all_to_all_single(output, rows.contiguous(), received, sent)
    return output


class Experts(nn.Module):
    """A router and this rank's share of the experts.

    Args:
        width: of a token.
        count: experts over all ranks, divisible by the number of ranks.
        top_k: experts that a token is sent to.
        label: the block's name, for the trace.
    """

    def __init__(self, width: int, count: int, top_k: int, world: World, label: str) -> None:
        super().__init__()
        self.count, self.top_k, self.world, self.label = count, top_k, world, label
        self.router = nn.Linear(width, count, bias=False)
        self.local = count // world.size
        # All are built and few kept, so that an expert's parameters do not depend on the number of ranks.
        experts = [FeedForward(width) for _ in range(count)]
        numbers = range(world.rank * self.local, (world.rank + 1) * self.local)
        self.experts = nn.ModuleDict({str(number): experts[number] for number in numbers})
        self.balance = torch.zeros(())
        """Load-balancing loss of the last forward: 1 if all experts get the same share, else more."""
        self.load = torch.zeros(count, dtype=torch.int64, device=world.device)
        """Tokens that each expert has received so far, over all ranks."""

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)
        probability = at_least_float32(self.router(tokens)).softmax(-1)
        weight, chosen = probability.topk(self.top_k)
        weight = weight / weight.sum(-1, keepdim=True)
        counts = torch.bincount(chosen.flatten(), minlength=self.count)
        self._update_load(counts, probability)

        order = chosen.flatten().argsort(stable=True)
        local_counts = self._exchange_counts(counts)
        sent, received = counts.view(-1, self.local).sum(1).tolist(), local_counts.sum(1).tolist()
        rows = self._exchange(tokens[order // self.top_k], sent, received, "dispatch")
        outputs = self._exchange(self._run_local_experts(rows, local_counts), received, sent, "combine")

        sorted_back = torch.empty_like(outputs).index_copy(0, order, outputs)
        mixed = (sorted_back.view(-1, self.top_k, tokens.shape[-1]) * weight.unsqueeze(-1).to(outputs.dtype)).sum(1)
        return mixed.view_as(x)

    def _exchange(self, rows: Tensor, sent: list[int], received: list[int], what: str) -> Tensor:
        if self.world.size == 1:
            return rows
        exchange = partial(_all_to_all, name=f"MoE::{what} ({self.label})")
        there, back = partial(exchange, sent=sent, received=received), partial(exchange, sent=received, received=sent)
        return custom_gradient(rows, there, back)

    def _exchange_counts(self, counts: Tensor) -> Tensor:
        """Return how many tokens each rank sends to each expert of this rank: (ranks, local experts)."""
        if self.world.size == 1:
            return counts.view(1, -1)
        incoming = torch.empty_like(counts)
        with record_function(f"MoE::counts ({self.label})"):
            dist.all_to_all_single(incoming, counts)
        return incoming.view(self.world.size, self.local)

    def _run_local_experts(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Apply each expert to its rows, which are ordered by rank and, within a rank, by expert."""
        owner = torch.arange(self.local, device=rows.device).repeat(len(counts)).repeat_interleave(counts.flatten())
        outputs = rows.new_empty(rows.shape)
        for number, expert in enumerate(self.experts.values()):
            chosen = (owner == number).nonzero().squeeze(-1)
            outputs = outputs.index_copy(0, chosen, expert(rows[chosen]).to(rows.dtype))
        return outputs

    def _update_load(self, counts: Tensor, probability: Tensor) -> None:
        """Compute the load-balancing loss E·Σ fᵢ·Pᵢ, share of tokens times mean probability (Switch Transformer, 2021).

        The shares are taken over all ranks, so that the mean of the ranks' losses is the loss of the whole batch.
        """
        total = counts.clone()
        if self.world.size > 1:
            dist.all_reduce(total)
        if torch.is_grad_enabled():
            self.load += total
        self.balance = self.count * (total / total.sum() * probability.mean(0)).sum()


def full_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Gather the parameters of all experts and return them with the common ones; all ranks must call this.

    Raises:
        RecordingError: a parameter is no longer finite.
    """
    gathered = {name: parameter.detach() for name, parameter in model.named_parameters()}
    for prefix, mixture in model.named_modules():
        if not isinstance(mixture, Experts):
            continue
        shapes = next(iter(mixture.experts.values())).state_dict()
        for number in range(mixture.count):
            for part, shape in shapes.items():
                name = f"{prefix}.experts.{number}.{part}"
                tensor = gathered.get(name, torch.empty_like(shape))
                dist.broadcast(tensor, number // mixture.local)
                check_finite(name, not torch.isfinite(tensor).all())
                gathered[name] = tensor
    return gathered
