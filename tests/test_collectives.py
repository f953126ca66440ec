"""Which kernels communicate, and what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dptrace.build import build_timelines
from dptrace.collectives import communication_names, kind_of
from dptrace.errors import UsageError
from dptrace.kineto import read_trace
from dptrace.timeline import Collective
from tests.kineto_files import KinetoFile


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*)", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", "reduce_scatter"),
        ("ncclDevKernel_SendRecv(x)", "send_recv"),
        ("_allgather_base", "all_gather"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("c10d::recv_any_source_", "recv"),
        ("nccl:reduce", "reduce"),
        ("void vllm::cross_device_reduce_1stage<float>()", "all_reduce"),
        ("ncclDevKernel_Generic(x)", ""),
    ],
)
def test_kind_is_read_from_every_spelling(name: str, expected: str) -> None:
    """Kernel names, Kineto's metadata and c10d's ops all lead to one word for each kind."""
    assert expected == kind_of(name)


def test_communication_is_told_by_name_without_false_friends() -> None:
    """FlashAttention's CollectiveMainloop computes; custom kernels count when a pattern says so."""
    names = ["ncclDevKernel_Generic", "flash::CollectiveMainloopFwd", "RCCL_thing", "my_ring", "gemm"]

    assert [True, False, True, False, False] == communication_names(names).tolist()
    assert [True, False, True, True, False] == communication_names(names, ["MY_r"]).tolist()


def test_a_bad_pattern_is_wrong_use() -> None:
    """A pattern that is no regular expression is named."""
    with pytest.raises(UsageError, match=r"--comm-pattern '\(': not a regular expression"):
        communication_names(["a"], ["("])
    with pytest.raises(UsageError, match="fits every kernel"):
        communication_names(["a"], [""])


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


def test_else_the_op_around_the_launch_tells(tmp_path: Path) -> None:
    """RCCL calls every kernel Generic: record_param_comms around the launch has the metadata."""
    args: dict[str, Any] = {"Collective name": "allreduce", "In msg nelems": 3, "Out msg nelems": 3, "dtype": "Float"}
    file = KinetoFile().op("c10d::allreduce_", 1, 9).op("record_param_comms", 2, 8, **args)
    file.kernel("ncclDevKernel_Generic(x)", 10, 20, 5)

    assert Collective("all_reduce", 12, "Float") == collective(file, tmp_path)


def test_else_the_names_around_the_launch_tell(tmp_path: Path) -> None:
    """Without metadata the kind comes from c10d's op, and the bytes are unknown."""
    file = KinetoFile().op("c10d::broadcast_", 1, 9).kernel("ncclDevKernel_Generic(x)", 10, 20, 5)

    assert Collective("broadcast") == collective(file, tmp_path)


def test_an_orphan_of_unknown_kind_is_other(tmp_path: Path) -> None:
    """A communication kernel that nothing speaks about still counts as communication."""
    assert Collective("other") == collective(KinetoFile().kernel("ncclDevKernel_Generic(x)", 1, 2, None), tmp_path)
