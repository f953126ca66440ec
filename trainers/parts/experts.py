"""A mixture of experts in place of a block's MLP: a router sends each token to the experts that suit it best.

::

    tokens of rank 0  a b c d ──dispatch──► expert 0 on rank 0: a, c and rank 1's f ──combine──► a' b' c' d'
    tokens of rank 1  e f g h ──dispatch──► expert 1 on rank 1: b, d and rank 1's e, g, h ─────► e' f' g' h'

No token is dropped: experts take as many as they are sent, so that the result is that of a single process.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.profiler import record_function

from dptrace.record import World
from dptrace.record.distributed import check_finite
from dptrace.trainers.parts.gpt import FeedForward

__all__ = ["Experts", "full_parameters", "local_parameter_names"]


class _Exchange(torch.autograd.Function):
    """An all-to-all of rows; their gradients go back the way that they came."""

    @staticmethod
    def forward(context: Any, rows: Tensor, sent: list[int], received: list[int], name: str) -> Tensor:
        context.sent, context.received, context.name = sent, received, name
        return _all_to_all(rows, sent, received, name)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        return _all_to_all(gradients[0], context.received, context.sent, context.name), None, None, None


def _all_to_all(rows: Tensor, sent: list[int], received: list[int], name: str) -> Tensor:
    output = rows.new_empty(sum(received), *rows.shape[1:])
    with record_function(name):
        dist.all_to_all_single(output, rows.contiguous(), received, sent)
    return output


class Experts(nn.Module):
    """A router and this rank's share of the experts.

    Args:
        width: of a token.
        count: experts on all ranks together; they must divide over the ranks.
        top_k: experts that a token is sent to.
        label: the block's name, for the trace.
    """

    def __init__(self, width: int, count: int, top_k: int, world: World, label: str) -> None:
        super().__init__()
        self.count, self.top_k, self.world, self.label = count, top_k, world, label
        self.router = nn.Linear(width, count, bias=False)
        self.local = count // world.size
        # All are made and few kept, so that an expert's parameters are the same on however many ranks.
        made = [FeedForward(width) for _ in range(count)]
        own = range(world.rank * self.local, (world.rank + 1) * self.local)
        self.experts = nn.ModuleDict({str(number): made[number] for number in own})
        self.balance = torch.zeros(())
        """Loss of the last forward that is 1 where all experts get the same share, and more else."""
        self.load = torch.zeros(count, dtype=torch.int64, device=world.device)
        """Tokens that each expert got so far, on all ranks together."""

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(0, -2)
        probability = self.router(tokens).float().softmax(-1)
        weight, chosen = probability.topk(self.top_k)
        weight = weight / weight.sum(-1, keepdim=True)
        counts = torch.bincount(chosen.flatten(), minlength=self.count)
        self._update_load(counts, probability)

        order = chosen.flatten().argsort(stable=True)
        here = self._token_counts(counts)
        sent, received = counts.view(-1, self.local).sum(1).tolist(), here.sum(1).tolist()
        arrived = self._move(tokens[order // self.top_k], sent, received, "dispatch")
        answers = self._move(self._run_local_experts(arrived, here), received, sent, "combine")

        sorted_back = torch.empty_like(answers).index_copy(0, order, answers)
        mixed = (sorted_back.view(-1, self.top_k, tokens.shape[-1]) * weight.unsqueeze(-1).to(answers.dtype)).sum(1)
        output: Tensor = mixed.view_as(x)
        return output

    def _move(self, rows: Tensor, sent: list[int], received: list[int], what: str) -> Tensor:
        if self.world.size == 1:
            return rows
        moved: Tensor = _Exchange.apply(rows, sent, received, f"MoE::{what} ({self.label})")
        return moved

    def _token_counts(self, counts: Tensor) -> Tensor:
        """Tell how many tokens come from each rank for each expert here: an array of ranks by experts."""
        if self.world.size == 1:
            return counts.view(1, -1)
        coming = torch.empty_like(counts)
        with record_function(f"MoE::counts ({self.label})"):
            dist.all_to_all_single(coming, counts)
        return coming.view(self.world.size, self.local)

    def _run_local_experts(self, rows: Tensor, here: Tensor) -> Tensor:
        """Apply each expert to its rows, which are ordered by rank and, within a rank, by expert."""
        owner = torch.arange(self.local, device=rows.device).repeat(len(here)).repeat_interleave(here.flatten())
        answers = rows.new_empty(rows.shape)
        for number, expert in enumerate(self.experts.values()):
            mine = (owner == number).nonzero().squeeze(-1)
            answers = answers.index_copy(0, mine, expert(rows[mine]).to(rows.dtype))
        return answers

    def _update_load(self, counts: Tensor, probability: Tensor) -> None:
        """Compute the load-balancing loss E·Σ fᵢ·Pᵢ, share of tokens times mean probability (Switch Transformer, 2021).

        The shares are those of all ranks, so that the mean of the ranks' losses is the loss of the whole batch.
        """
        everywhere = counts.clone()
        if self.world.size > 1:
            dist.all_reduce(everywhere)
        if torch.is_grad_enabled():
            self.load += everywhere
        share = everywhere / everywhere.sum()
        self.balance = self.count * (share * probability.mean(0)).sum()


def local_parameter_names(model: nn.Module) -> set[str]:
    """Return the names of the parameters that this rank alone holds: its experts'."""
    return {name for name, _ in model.named_parameters() if ".experts." in name}


def full_parameters(model: nn.Module) -> dict[str, Tensor]:
    """Gather the parameters of all experts beside the common ones; all ranks must call.

    Raises:
        RecordingError: one is no longer finite.
    """
    found = {name: parameter.detach() for name, parameter in model.named_parameters()}
    for prefix, mixture in model.named_modules():
        if not isinstance(mixture, Experts):
            continue
        like = next(iter(mixture.experts.values())).state_dict()
        for number in range(mixture.count):
            for part, shape in like.items():
                name = f"{prefix}.experts.{number}.{part}"
                tensor = found.get(name, torch.empty_like(shape))
                dist.broadcast(tensor, number // mixture.local)
                check_finite(name, not torch.isfinite(tensor).all())
                found[name] = tensor
    return found
