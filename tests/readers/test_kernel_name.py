"""The own name of a kernel in each form in which traces record it."""

from __future__ import annotations

import pytest

from dptrace.readers.kernel_name import own_name


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "ncclDevKernel_Generic_1"),
        ("void vllm::cross_device_reduce_1stage<__half, 8>(RankData*, int)", "vllm::cross_device_reduce_1stage"),
        ("void (anonymous namespace)::f<(anonymous namespace)::T, 4>(float*)", "::f"),
        ("void <unnamed>::f<float, (int)16>(T1 *, unsigned long)", "::f"),
        ("std::enable_if<(4>2), void>::type ns::f<a::b<c<1>>>(int)", "ns::f"),
        ("void ns::Class<float>::f<int>(int)", "ns::Class::f"),
        ("void f<op<ncclA>, x::{lambda(int)#1}>(int, x::{lambda(int)#1})", "f"),
        ("void f<ncclA, cut off at the en", "f"),
        ("_gqa_kernel.kd", "_gqa_kernel"),
        ("void f<float>(float*) [clone .kd]", "f"),
        ("typeinfo name for oneccl_reduce_scatter_large_read<float, 4, 2>", "oneccl_reduce_scatter_large_read"),
        (
            "_ZN5aiter33reduce_scatter_cross_device_storeIDF16bLi8EEEvPNS_8RankDataE",
            "aiter::reduce_scatter_cross_device_store",
        ),
        ("_ZN12_GLOBAL__N_126multimem_all_gather_kernelILi16EEEvPcS1_m", "::multimem_all_gather_kernel"),
        ("_Z10allreduce7IfEvPT_", "allreduce7"),
        ("_Zunusual", "_Zunusual"),
        ("c10d::allreduce_", "c10d::allreduce_"),
        ("nccl:_all_gather_base", "nccl:_all_gather_base"),
        ("", ""),
    ],
)
def test_own_name(name: str, expected: str) -> None:
    """Without return type, template arguments and parameters, however nested, cut off or mangled."""
    assert expected == own_name(name)
