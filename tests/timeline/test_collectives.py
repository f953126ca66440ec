"""The collective of each communication kernel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dptrace.readers.kineto.reader import read_trace
from dptrace.timeline.build import build_timelines
from dptrace.timeline.model import Collective
from tests.support.kineto_files import KinetoFile


def collective(file: KinetoFile, folder: Path) -> Collective:
    (timeline,) = build_timelines(read_trace(file.write(folder / "t.json")), 0)
    (only,) = timeline.collectives
    return only


def test_metadata_on_the_kernel_comes_first(tmp_path: Path) -> None:
    """Bytes are the larger of input and output times the element size; group and sequence are kept."""
    args: dict[str, Any] = {
        "Collective name": "_allgather_base",
        "In msg nelems": 10,
        "Out msg nelems": 80,
        "dtype": "BFloat16",
        "Group size": 8,
        "Process Group Name": "3",
        "Seq": 7,
    }
    file = KinetoFile().kernel("ncclDevKernel_Generic", 10, 20, 5, **args)

    assert Collective("all_gather", 160, "BFloat16", "3", 8, 7) == collective(file, tmp_path)


def test_else_the_op_around_the_launch_shows(tmp_path: Path) -> None:
    """RCCL calls every kernel Generic: record_param_comms around the launch has the metadata."""
    args: dict[str, Any] = {"Collective name": "allreduce", "In msg nelems": 3, "Out msg nelems": 3, "dtype": "Float"}
    file = KinetoFile().op("c10d::allreduce_", 1, 9).op("record_param_comms", 2, 8, **args)
    file.kernel("ncclDevKernel_Generic(x)", 10, 20, 5)

    assert Collective("all_reduce", 12, "Float") == collective(file, tmp_path)


def test_else_the_names_around_the_launch_show(tmp_path: Path) -> None:
    """Without metadata the kind comes from c10d's operator, and the bytes are unknown."""
    file = KinetoFile().op("c10d::broadcast_", 1, 9).kernel("ncclDevKernel_Generic(x)", 10, 20, 5)

    assert Collective("broadcast") == collective(file, tmp_path)


@pytest.mark.parametrize("function", ["torch::autograd::AccumulateGrad", "SyncBatchNormBackward"])
def test_what_autograd_launches_for_a_gradient_is_marked(function: str, tmp_path: Path) -> None:
    """As DDP's hooks do; a layer's own communication in backward is not."""
    file = KinetoFile().op(f"autograd::engine::evaluate_function: {function}", 1, 9).op("c10d::allreduce_", 2, 8)
    file.kernel("ncclDevKernel_Generic(x)", 10, 20, 5)

    assert Collective("all_reduce", gradients="Accumulate" in function) == collective(file, tmp_path)


def test_an_orphan_of_unknown_kind_is_other(tmp_path: Path) -> None:
    """A communication kernel without other evidence still counts as communication."""
    assert Collective("other") == collective(KinetoFile().kernel("ncclDevKernel_Generic(x)", 1, 2, None), tmp_path)


@pytest.mark.parametrize(("second", "orphan"), [("c10d::alltoall_", "all_to_all"), ("c10d::send", "send_recv")])
def test_an_orphan_is_of_the_kind_of_all_other_kernels_of_its_name(second: str, orphan: str, tmp_path: Path) -> None:
    """SendRecv carries out an all-to-all and messages: its name does not tell which."""
    file = KinetoFile().kernel("ncclDevKernel_SendRecv(x)", 1, 2, None)
    file.op("c10d::alltoall_", 10, 15).kernel("ncclDevKernel_SendRecv(x)", 16, 19, 11)
    file.op(second, 30, 35).kernel("ncclDevKernel_SendRecv(x)", 36, 39, 31)
    (timeline,) = build_timelines(read_trace(file.write(tmp_path / "t.json")), 0)

    assert [orphan, "all_to_all"] == [one.kind for one in timeline.collectives[:2]]


def test_group_and_peer_are_kept(tmp_path: Path) -> None:
    """The group's ranks and purpose, and the peer of a send."""
    args: dict[str, Any] = {
        "Collective name": "send",
        "In msg nelems": 8,
        "Out msg nelems": 8,
        "dtype": "Half",
        "Group size": 2,
        "Process Group Name": "5",
        "Process Group Description": "mesh_pp",
        "Process Group Ranks": "[1, 5]",
        "Dst Rank": 5,
    }
    file = KinetoFile().kernel("ncclDevKernel_SendRecv", 10, 20, 5, **args)

    assert Collective("send", 16, "Half", "5", 2, -1, (1, 5), "mesh_pp", 5) == collective(file, tmp_path)


@pytest.mark.parametrize(
    ("text", "size", "ranks"),
    [
        ("[0, 2, 4, ..., 126]", 64, tuple(range(0, 128, 2))),
        ("[0, 2, 4, ..., 126]", 60, (0, 2, 4, 126)),
        ("[0, 2, 5, ..., 126]", 64, (0, 2, 5, 126)),
        ("[]", 1, ()),
        (7, 1, ()),
    ],
)
def test_a_shortened_list_of_ranks_is_filled_in_where_it_is_even(
    text: object, size: int, ranks: tuple[int, ...], tmp_path: Path
) -> None:
    """torch omits the middle of more than 30 ranks; a list that does not fit the group's size stays as it is."""
    args: dict[str, Any] = {"Collective name": "allreduce", "Process Group Ranks": text, "Group size": size}
    file = KinetoFile().kernel("ncclDevKernel_AllReduce", 10, 20, 5, **args)

    assert ranks == collective(file, tmp_path).ranks


def test_the_trainers_own_label_is_kept(tmp_path: Path) -> None:
    """FSDP names the module, and pipelines the action, around the launch."""
    file = KinetoFile().label("FSDP::all_gather (layers.3)", 1, 9).op("c10d::_allgather_base_", 2, 8)
    file.kernel("ncclDevKernel_AllGather", 10, 20, 5)

    assert Collective("all_gather", label="FSDP::all_gather (layers.3)") == collective(file, tmp_path)


def test_layers_that_ranks_share_are_named(tmp_path: Path) -> None:
    """Labels of tensor parallelism, around c10d's operators and the functional ones that DTensor uses."""
    file = KinetoFile().label("TP::all_reduce (3.mlp)", 1, 12).op("_c10d_functional::all_reduce", 2, 9)
    file.op("c10d::allreduce_", 3, 8).kernel("ncclDevKernel_Generic(x)", 10, 20, 5)

    assert Collective("all_reduce", label="TP::all_reduce (3.mlp)") == collective(file, tmp_path)


def test_functional_collectives_are_known_on_gloo(tmp_path: Path) -> None:
    """DTensor's: the wait is not compute, and kind and bytes are those of the operator that enqueued it."""
    shapes: dict[str, Any] = {"Input Dims": [[32, 64]], "Input type": ["float"]}
    listed: dict[str, Any] = {"Input Dims": [[[32, 64]]], "Input type": ["TensorList"]}
    file = KinetoFile(backend="gloo").op("_c10d_functional::all_reduce", 1, 9).op("c10d::allreduce_", 2, 8, **listed)
    file.label("gloo:all_reduce", 11, 17, tid=9, **shapes).op("_c10d_functional::wait_tensor", 10, 20)
    (timeline,) = build_timelines(read_trace(file.write(tmp_path / "t.json")), 0)

    assert ("gloo:all_reduce",) == timeline.names
    assert (Collective("all_reduce", 8192, "float"),) == timeline.collectives


def test_gloo_has_labels_too(tmp_path: Path) -> None:
    """From the label around the operator that enqueued it."""
    file = KinetoFile(backend="gloo").label("PP:0SEND_F1", 1, 9).op("c10d::send", 2, 8)
    file.label("gloo:send", 3, 7, tid=9).op("aten::add", 20, 30)

    assert "PP:0SEND_F1" == collective(file, tmp_path).label


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("void deep_ep::intranode::dispatch<8>(int4*)", Collective("dispatch", synchronizes=True)),
        ("void deep_ep::internode_ll::combine<7168>(void*)", Collective("combine")),
        ("c10d::nvshmem_extension::allToAllV(void*)", Collective("all_to_all", synchronizes=False)),
    ],
)
def test_a_kernel_without_metadata_is_named_for_what_it_does(name: str, expected: Collective, tmp_path: Path) -> None:
    """Kind, and whether all ranks wait in it for all others, where that differs from others of its kind."""
    assert expected == collective(KinetoFile().kernel(name, 10, 20, 5), tmp_path)
