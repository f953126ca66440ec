"""The own name of a kernel in each form in which traces record it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dptrace.readers.kernel_name import own_name, short_name, short_names

OWN_NAMES = {
    "ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)": "ncclDevKernel_Generic_1",
    "void vllm::cross_device_reduce_1stage<__half, 8>(RankData*, int)": "vllm::cross_device_reduce_1stage",
    "void (anonymous namespace)::f<(anonymous namespace)::T, 4>(float*)": "::f",
    "void <unnamed>::f<float, (int)16>(T1 *, unsigned long)": "::f",
    "std::enable_if<(4>2), void>::type ns::f<a::b<c<1>>>(int)": "ns::f",
    "void ns::Class<float>::f<int>(int)": "ns::Class::f",
    "void f<op<ncclA>, x::{lambda(int)#1}>(int, x::{lambda(int)#1})": "f",
    "void f<ncclA, cut off at the en": "f",
    "_gqa_kernel.kd": "_gqa_kernel",
    "void f<float>(float*) [clone .kd]": "f",
    "typeinfo name for oneccl_reduce_scatter_large_read<float, 4, 2>": "oneccl_reduce_scatter_large_read",
    "_ZN5aiter33reduce_scatter_cross_device_storeIDF16bLi8EEEvPNS_8RankDataE": (
        "aiter::reduce_scatter_cross_device_store"
    ),
    "_ZN12_GLOBAL__N_126multimem_all_gather_kernelILi16EEEvPcS1_m": "::multimem_all_gather_kernel",
    "_Z10allreduce7IfEvPT_": "allreduce7",
    "_Zunusual": "_Zunusual",
    "c10d::allreduce_": "c10d::allreduce_",
    "nccl:_all_gather_base": "nccl:_all_gather_base",
    "TorchDynamo Cache Lookup": "TorchDynamo Cache Lookup",
    "": "",
}


def test_own_name() -> None:
    """Without return type, template arguments and parameters, however nested, cut off or mangled."""
    assert OWN_NAMES == {name: own_name(name) for name in OWN_NAMES}


# Names of kernels get short, stay different from each other, and say what the kernel is.

NATIVE = "void at::native::"
CASES = {
    f"{NATIVE}vectorized_elementwise_kernel<4, at::native::FillFunctor<c10::BFloat16>, std::array<char*, 1ul> >(int)": (
        "vectorized_elementwise_kernel(FillFunctor<bf16>)"
    ),
    f"{NATIVE}elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda"
    "(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda(float)#1}>(at::TensorIteratorBase&)>": (
        "elementwise_kernel(direct_copy<float>)"
    ),
    f"{NATIVE}vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, "
    "at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul> >(int)": (
        "vectorized_elementwise_kernel(MulFunctor<float>)"
    ),
    f"{NATIVE}reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, "
    "unsigned int, float, 4, 4> >(at::native::ReduceOp<float>)": "reduce_kernel(MeanOps<float>)",
    "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x3_tn_align2>(P::Params)": (
        "cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x3_tn_align2"
    ),
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_kernel__5x_cublas": (
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64"
    ),
    "Cijk_Alik_Bljk_BBS_BH_Bias_HAS_SAV_UserArgs_MT32x32x64_MI16x16x1_SN_LDSB0": "Cijk_Alik_Bljk_BBS_MT32x32x64",
    "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT": "nvjet_tst_256x128_64x4_1x2_h_bz_coopA_TNT",
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::Main<2> > > >(P)": (
        "flash::FlashAttnFwdSm90"
    ),
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10>(float*)": "softmax_warp_forward",
    "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)": (
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    ),
    "triton_poi_fused_add_mul_5": "triton_poi_fused_add_mul_5",
    "Memcpy HtoD (Pageable -> Device)": "Memcpy HtoD (Pageable -> Device)",
    "aten::addmm": "aten::addmm",
    "gemm</script><b>x</b>": "gemm</script><b>x</b>",
    "loss<1 of step": "loss<1 of step",
    "warm <up> kernel": "warm <up> kernel",
    "void <unnamed>::f<float, ns::T<2>>(T1 *)": "f",
}


def test_what_a_kernel_computes_stays_readable() -> None:
    """Templates shrink to the functor and its type, GEMMs to types and tile."""
    assert CASES == {name: short_name(name) for name in CASES}


def test_a_fused_kernel_keeps_its_number() -> None:
    """Inductor numbers its kernels, and lists every operator that it fused."""
    name = "triton_red_fused_" + "_".join(f"operator{i}" for i in range(40)) + "_34"

    assert short_name(name).startswith("triton_red_fused_operator0_")
    assert short_name(name).endswith("_34")
    assert len(short_name(name)) < 60


def test_kernels_of_equal_short_names_are_distinguished() -> None:
    """By what differs in their full names."""
    names = [f"void cudnn::bn_bw_1C11<float, {size}, true>(float*)" for size in (128, 512)]

    assert ["cudnn::bn_bw_1C11 [128]", "cudnn::bn_bw_1C11 [512]"] == list(short_names(names).values())


@pytest.mark.heavy
@given(st.lists(st.text(alphabet="abc<>(){},: ._0#&*-", max_size=30), unique=True, max_size=12))
def test_any_names_stay_different(names: list[str]) -> None:
    """Strangers' names too, and none is lost."""
    found = short_names(names)

    assert names == sorted(found, key=names.index)
    assert len(names) == len(set(found.values()))
