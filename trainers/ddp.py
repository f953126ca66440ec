"""PyTorch's DistributedDataParallel: gradients are gathered in buckets, an all-reduce for each full bucket.

The same overlap as in interleaved, with fewer and larger messages: DDP hooks into backward, averages each bucket
over the ranks, and waits for the last one before backward returns. The loop is that of a single GPU.

    dptrace record --mode ddp --gpus 4 --bucket-cap-mb 4
    torchrun --nproc-per-node 4 ddp.py --steps 4
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from dptrace.record import Options, World, assert_in_sync, parse_options, phase, process_group, record, save_parameters
from dptrace.trainers import mlp


def train(options: Options, world: World) -> None:
    buckets: dict[str, Any] = {} if options.bucket_cap_mb is None else {"bucket_cap_mb": options.bucket_cap_mb}
    model = DistributedDataParallel(mlp.build(options, world), **buckets)
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
    options = parse_options(__doc__, "bucket_cap_mb")
    with process_group() as world:
        train(options, world)
