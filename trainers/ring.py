"""Data parallelism with an all-reduce of its own: a ring, in which every rank talks only to its two neighbors.

::

    rank 0 ─► rank 1 ─► rank 2 ─► rank 3 ─┐     each rank sends one chunk while it receives another
    ▲                                     │
    └─────────────────────────────────────┘

The gradients are one buffer, split into as many chunks as there are ranks. First (reduce-scatter) each chunk travels
around the ring and every rank adds to it; then (all-gather) the sums travel around once more. Each rank sends
2 (n-1)/n of the buffer, about twice its size for any number of ranks, and all links are busy at the same time.

    dptrace record --mode ring --gpus 4
    torchrun --nproc-per-node 4 ring.py --steps 4
"""

from __future__ import annotations

from dptrace.record import Options, World
from dptrace.trainers.parts.collectives import exchange, flat_gradients, ring_all_reduce
from dptrace.trainers.parts.optimizer_wrapper import OptimizerWrapper
from dptrace.trainers.parts.task import build_task, main


def train(options: Options, world: World) -> None:
    task = build_task(options, world)
    model = task.model
    optimizer_wrapper = OptimizerWrapper(model, options)

    with task.record(model) as recording:
        for x, y in task.batches(recording.total_steps):
            loss = task.forward(model, x, y)
            optimizer_wrapper.backward(loss, over=world.size)  # so that the sum over the ranks is the average

            with flat_gradients(model) as gradients:
                ring_all_reduce(gradients, world.rank, world.size, exchange)

            optimizer_wrapper.step()
            recording.step(loss)


if __name__ == "__main__":
    main(train, "ring", __doc__)
