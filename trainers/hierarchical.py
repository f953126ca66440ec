"""Data parallelism on several machines: the slow links between them carry one message for each, not for each GPU.

Inside a node the gradients are added up on its first rank; these leaders all-reduce among themselves; and each hands
the result out in its node. A flat ring of the same ranks would go at the pace of its slowest link all around.

    dptrace record --mode hierarchical --gpus 4 --ranks-per-node 2
    torchrun --nproc-per-node 4 hierarchical.py --steps 4 --ranks-per-node 2
"""

from __future__ import annotations

from dptrace.record import Options, World, assert_in_sync, parse_options, phase, process_group, record, save_parameters
from dptrace.trainers.parts.flat import flat_gradients
from dptrace.trainers.parts.learner import OptimizerWrapper
from dptrace.trainers.parts.nodes import Nodes
from dptrace.trainers.parts.task import build_task


def train(options: Options, world: World) -> None:
    task = build_task(options, world)
    model = task.model
    optimizer_wrapper = OptimizerWrapper(model, options)
    nodes = Nodes(world, options.ranks_per_node)

    with record(model=model, **options.record_arguments) as recording:
        for x, y in task.batches(recording.total_steps):
            with phase("forward"):
                loss = task.loss(model(x), y)

            with phase("backward"):
                optimizer_wrapper.backward(loss / world.size)  # so that the sum over ranks is the average

            with flat_gradients(model) as gradients:
                nodes.reduce_within_node(gradients)
                nodes.all_reduce_across_nodes(gradients)
                nodes.broadcast_within_node(gradients)

            with phase("optimizer"):
                optimizer_wrapper.step()
            recording.step(loss)

        assert_in_sync(model)
        task.validate(recording)
    save_parameters(model, options.save_parameters)


if __name__ == "__main__":
    options = parse_options(__doc__, "hierarchical")
    with process_group() as world:
        train(options, world)
