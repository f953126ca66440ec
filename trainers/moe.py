"""Mixture of experts: each rank holds some of the experts, and tokens travel to those that a router chose for them.

A token's way through a block is an all-to-all to its experts (dispatch) and one back (combine), forward and again in
backward. All else is data parallel: every rank trains on its shard of the batch and averages the gradients of what
all ranks hold. The experts' own gradients are whole where they are: all their tokens came to them.

    dptrace record --mode moe --gpus 4 --experts 8 --top-k 2
    torchrun --nproc-per-node 4 moe.py --steps 4
"""

from __future__ import annotations

import torch
import torch.distributed as dist

from dptrace.record import Options, World, assert_in_sync, parse_options, phase, process_group, record, save_parameters
from dptrace.record.options.validation import check_experts
from dptrace.trainers.parts.experts import Experts, full_parameters, local_parameter_names
from dptrace.trainers.parts.gpt import Block
from dptrace.trainers.parts.learner import OptimizerWrapper
from dptrace.trainers.parts.task import build_task

BALANCE = 0.01
"""Weight of the load-balancing loss beside the model's own."""


def train(options: Options, world: World) -> None:
    check_experts(vars(options), world.size)
    task = build_task(options, world)
    model = task.model
    for number, block in enumerate(model.children()):
        if isinstance(block, Block):
            width = block.mlp_norm.normalized_shape[0]
            mixture = Experts(width, options.experts, options.top_k, world, f"{number}.mlp")
            block.mlp = mixture.to(world.device)
    mixtures = [module for module in model.modules() if isinstance(module, Experts)]
    mine = local_parameter_names(model)
    load = torch.zeros(len(mixtures), options.experts, dtype=torch.int64, device=world.device)
    for row, mixture in zip(load, mixtures, strict=True):
        mixture.load = row  # a view: what it counts is in the table
    common = [parameter for name, parameter in model.named_parameters() if name not in mine]
    optimizer_wrapper = OptimizerWrapper(model, options)

    with record(model=model, **options.record_arguments) as recording:
        experts = sum(parameter.numel() for name, parameter in model.named_parameters() if name in mine)
        recording.parameters = sum(parameter.numel() for parameter in common) + world.size * experts
        recording.options["expert_load"] = load
        for x, y in task.batches(recording.total_steps):
            with phase("forward"):
                loss = task.loss(model(x), y)
                balance = torch.stack([mixture.balance for mixture in mixtures]).mean()

            with phase("backward"):
                optimizer_wrapper.backward((loss + BALANCE * balance) / world.size)

            for parameter in common:
                dist.all_reduce(parameter.grad)

            with phase("optimizer"):
                optimizer_wrapper.step()
            recording.step(loss)

        assert_in_sync(model, exclude=mine)
        everything = full_parameters(model)
    save_parameters(model, options.save_parameters, everything)


if __name__ == "__main__":
    options = parse_options(__doc__, "moe")
    with process_group() as world:
        train(options, world)
