"""One GPU: forward, backward, optimizer. No communication; the baseline of all others.

dptrace record --mode single
python single.py --steps 4
"""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy

from dptrace.errors import UsageError
from dptrace.record import Options, World, assert_in_sync, parse_options, phase, process_group, record, save_parameters
from dptrace.trainers import mlp


def train(options: Options, world: World) -> None:
    if world.size > 1:
        raise UsageError("single trains on one GPU; start one process.")
    model = mlp.build(options, world)
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)

    with record(model=model, **options.recording) as recording:
        for x, y in mlp.batches(options, world, recording.total_steps):
            with phase("forward"):
                loss = cross_entropy(model(x), y)

            with phase("backward"):
                loss.backward()

            with phase("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
            recording.step(loss)

        assert_in_sync(model)
    save_parameters(model, options.save_parameters)


if __name__ == "__main__":
    options = parse_options(__doc__)
    with process_group() as world:
        train(options, world)
