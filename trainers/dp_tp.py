"""Data parallel and tensor parallel: a mesh of ranks whose rows split the model and whose columns split the batch.

::

    rank 0  rank 1     row 0: the model split in two, for the first half of the batch
    rank 2  rank 3     row 1: the same for the second half; ranks 0 and 2 hold the same part

Activations are all-reduced in a row, on the critical path, so a row needs the fastest links: those of one machine.
DDP all-reduces gradients in a column, overlapped with backward.

    dptrace record --mode dp-tp --gpus 4 --tp 2
    torchrun --nproc-per-node 4 dp_tp.py --steps 4 --tp 2
"""

from __future__ import annotations

from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from dptrace.record import Options, World, assert_in_sync
from dptrace.trainers.parts.collectives import coordinates
from dptrace.trainers.parts.optimizer_wrapper import OptimizerWrapper
from dptrace.trainers.parts.task import build_task, main
from dptrace.trainers.parts.tensor_parallel import TensorParallel


def train(options: Options, world: World) -> None:
    replicas = world.size // options.tp
    mesh = init_device_mesh(world.device.type, (replicas, options.tp), mesh_dim_names=("dp", "tp"))
    tensors = TensorParallel(mesh.get_group("tp"))
    task = build_task(options, world, tensors.split)
    task.rank_entry["coordinates"] = coordinates(mesh)
    model = DistributedDataParallel(task.model, process_group=mesh.get_group("dp"))
    optimizer_wrapper = OptimizerWrapper(
        model, options, shard_group=tensors.group, replica_counts=tensors.replica_counts(task.model)
    )

    with task.record(model, tensors.parameters) as recording:
        for x, y in task.batches(recording.total_steps, shard=(mesh.get_local_rank("dp"), replicas)):
            loss = task.forward(model, x, y)
            optimizer_wrapper.backward(loss)
            optimizer_wrapper.step()
            recording.step(loss)

        # Columns may sum in different orders, so that unsplit parameters agree within a row only up to rounding.
        assert_in_sync(task.model, group=mesh.get_group("dp"))
        task.full_parameters = tensors.full_parameters(task.model.named_parameters())


if __name__ == "__main__":
    main(train, "dp-tp", __doc__)
