"""Mixture of experts: each rank holds some of the experts, and tokens travel to those that a router chose for them.

::

    rank 0   tokens ─► router ─┐            ┌─► experts 0-3 ─┐           ┌─► tokens
                               ├─ dispatch ─┤                ├─ combine ─┤
    rank 1   tokens ─► router ─┘            └─► experts 4-7 ─┘           └─► tokens

In each block the tokens go to their experts in one all-to-all (dispatch) and come back in another (combine), in forward
and again in backward. The rest is data parallel: every rank trains on its shard of the batch, and the gradients of the
common parameters are averaged. The gradients of an expert are complete on its rank, which has seen all its tokens.

With --capacity-factor an expert drops the tokens beyond its capacity, and with --shared-experts further experts, which
each rank holds, compute for every token while tokens are dispatched.

    dptrace record --mode moe --gpus 4 --experts 8 --top-k 2
    torchrun --nproc-per-node 4 moe.py --steps 4
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from dptrace.record import Options, World, assert_in_sync, phase
from dptrace.trainers.parts.experts import BALANCE, MixtureRanks, Peers, full_parameters, is_expert, use_experts
from dptrace.trainers.parts.optimizer_wrapper import OptimizerWrapper
from dptrace.trainers.parts.task import build_task, main


def train(options: Options, world: World) -> None:
    task = build_task(options, world)
    model = task.model
    peers = Peers(dist.group.WORLD, world.rank, world.size)
    mixtures = use_experts(model, options, MixtureRanks(tokens=peers, experts=peers), world.device)
    local_names = {name for name, _ in model.named_parameters() if is_expert(name)}
    common = [parameter for name, parameter in model.named_parameters() if name not in local_names]
    optimizer_wrapper = OptimizerWrapper(model, options, counters=mixtures.counters)

    experts = sum(parameter.numel() for name, parameter in model.named_parameters() if name in local_names)
    parameters = sum(parameter.numel() for parameter in common) + world.size * experts
    with task.record(model, parameters) as recording:
        recording.options |= mixtures.counters
        for x, y in task.batches(recording.total_steps):
            with phase("forward"):
                loss = task.loss(model(x), y)
                balance = torch.stack([mixture.balance for mixture in mixtures.layers]).mean()
                total_loss = loss + BALANCE * balance
            optimizer_wrapper.backward(total_loss, over=world.size)

            for parameter in common:
                dist.all_reduce(parameter.grad)

            optimizer_wrapper.step()
            recording.step(loss)

        assert_in_sync(model, exclude=local_names)
        task.full_parameters = full_parameters(dict(model.named_parameters()), peers, options.experts)


if __name__ == "__main__":
    main(train, "moe", __doc__)
