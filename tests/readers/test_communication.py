"""The table of communication kernels, and what ``--comm-pattern`` adds to it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dptrace.errors import UsageError
from dptrace.readers.communication import KERNELS, communication_names, kind_of
from dptrace.readers.kineto.reader import read_trace
from dptrace.timeline.build import build_timelines
from dptrace.timeline.model import Kind
from tests.support.kineto_files import KinetoFile


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
    """Kernel names, Kineto's metadata and c10d's operators all map to one word for each kind."""
    assert expected == kind_of(name)


def test_kernels_are_classified_by_name_without_false_positives() -> None:
    """FlashAttention's CollectiveMainloop computes; custom kernels count where a pattern matches them."""
    names = ["ncclDevKernel_Generic", "flash::CollectiveMainloopFwd", "RCCL_thing", "my_ring", "gemm"]

    assert [True, False, True, False, False] == communication_names(names).tolist()
    assert [True, False, True, True, False] == communication_names(names, ["MY_r"]).tolist()


def test_a_bad_pattern_is_wrong_use() -> None:
    """The message quotes a pattern that is not a regular expression."""
    with pytest.raises(UsageError, match=r"--comm-pattern '\('"):
        communication_names(["a"], ["("])
    with pytest.raises(UsageError, match="--comm-pattern"):
        communication_names(["a"], [""])


def test_a_line_of_the_table_holds_a_pattern_and_its_source() -> None:
    """Each pattern compiles, matches no empty name and says who writes such kernels."""
    for kernel in KERNELS:
        assert not re.search(kernel.pattern, "", re.IGNORECASE)
        assert kernel.source


@pytest.mark.parametrize(
    ("name", "patterns"), [("ncclDevKernel_AllReduce", ()), ("deep_ep::dispatch", ()), ("my_ring", ("MY_r",))]
)
def test_reading_and_classification_use_the_same_table(name: str, patterns: tuple[str, ...], tmp_path: Path) -> None:
    """A communication kernel may wait for its peers past later kernels of its stream: it is not cut short."""
    file = KinetoFile().kernel(name, 200, 2_000_200, 190, stream=7)
    for k in range(20):
        file.kernel("gemm", 210 + 10 * k, 218 + 10 * k, 195 + k, stream=7)
    path = file.write(tmp_path / "t.json")
    trace = read_trace(path, comm_patterns=patterns)
    (timeline,) = build_timelines(trace, 0, patterns)

    assert () == trace.damage
    assert Kind.COMMUNICATION == timeline.kind[0]
    assert 2_000_000_000 == timeline.end_ns[0] - timeline.start_ns[0]
