"""Data parallelism on several machines: the slow links between them carry one message for each, not for each GPU.

Inside a node the gradients are added up on its first rank; these leaders all-reduce among themselves; and each hands
the result out in its node. A flat ring of the same ranks would go at the pace of its slowest link all around.

    dptrace record --mode hierarchical --gpus 4 --ranks-per-node 2
    torchrun --nproc-per-node 4 hierarchical.py --steps 4 --ranks-per-node 2
"""

from __future__ import annotations

from dptrace.record import Options, World, assert_in_sync, parse_options, phase, process_group, record, save_parameters
from dptrace.trainers.parts.flat import flat_gradients
from dptrace.trainers.parts.learner import Learner
from dptrace.trainers.parts.nodes import Nodes
from dptrace.trainers.parts.task import task


def train(options: Options, world: World) -> None:
    work = task(options, world)
    model = work.model
    learner = Learner(model, options)
    nodes = Nodes(world, options.ranks_per_node)

    with record(model=model, **options.recording) as recording:
        for x, y in work.batches(recording.total_steps):
            with phase("forward"):
                loss = work.loss(model(x), y)

            with phase("backward"):
                learner.backward(loss / world.size)  # so that the sum over ranks is the average

            with flat_gradients(model) as gradients:
                nodes.add_up(gradients)
                nodes.all_reduce_across(gradients)
                nodes.hand_out(gradients)

            with phase("optimizer"):
                learner.step()
            recording.step(loss)

        assert_in_sync(model)
        work.validate(recording)
    save_parameters(model, options.save_parameters)


if __name__ == "__main__":
    options = parse_options(__doc__, "hierarchical")
    with process_group() as world:
        train(options, world)
