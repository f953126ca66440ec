"""The table of communication kernels, and what ``--comm-pattern`` adds to it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dptrace.errors import UsageError
from dptrace.model.collectives import COLLECTIVES
from dptrace.readers.communication import KERNELS, communication_names, kind_of, synchronizes
from dptrace.readers.kineto.reader import read_trace
from dptrace.timeline.build import build_timelines
from dptrace.timeline.model import Kind
from tests.support.kineto_files import KinetoFile

TORCH = "unsigned long, unsigned int**, unsigned long, unsigned long"
NCCL = [
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce", True),
    ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "all_reduce", True),
    ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce_scatter", True),
    ("ncclDevKernel_Broadcast_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "broadcast", False),
    ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)", "send_recv", False),
    ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "", False),
    ("ncclSymDevKernel_AllReduce_RSxLD_AGxST_sum_bf16(ncclSymDevArgs)", "all_reduce", True),
    ("ncclSymkDevKernel_ReduceScatter_LL_sum_f8e4m3(ncclSymkDevWorkArgs4K)", "reduce_scatter", True),
    ("ncclKernelAllGatherCtranDirect(int*, ctran::CtranAlgoDeviceState*)", "all_gather", True),
    ("mscclKernel_Sum_half_Simple(ncclDevComm*, mscclAlgo*, mscclWork*)", "", False),
    ("void mscclpp::executionKernel<__half, mscclpp::LL16Packet>(int, __half*, __half*)", "", False),
    ("void allreduce7<mscclpp::SUM, __half>(__half*, __half*, __half*, unsigned long)", "all_reduce", True),
    ("typeinfo name for oneccl_reduce_scatter_large_read<float, 4, 2>", "reduce_scatter", False),
    ("hcom_allReduce__360_0_1", "all_reduce", True),
    ("hcom_batchSendRecv__428_0_1", "send_recv", False),
    ("hcom_receive__12_0_1", "recv", False),
]
SYMMETRIC = [
    (
        f"void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, {TORCH})",
        "all_reduce",
    ),
    (
        f"void (anonymous namespace)::multimem_one_shot_all_reduce_kernel<float, 16>(float*, float*, {TORCH})",
        "all_reduce",
    ),
    (f"void (anonymous namespace)::one_shot_all_reduce_kernel<float, 16, 8>(float**, float*, {TORCH})", "all_reduce"),
    (f"void <unnamed>::two_shot_all_reduce_kernel_inplace<float, (int)16, (int)8>(T1 **, {TORCH})", "all_reduce"),
    (f"void (anonymous namespace)::two_shot_all_reduce_kernel<float, 16, 8, false, false>({TORCH})", "all_reduce"),
    (f"void (anonymous namespace)::two_shot_all_reduce_kernel<float, 16, 8, true, false>({TORCH})", "reduce_scatter"),
    (
        f"void <unnamed>::two_shot_all_reduce_kernel<float, (int)16, (int)8, (bool)1, (bool)1>({TORCH})",
        "reduce_scatter",
    ),
    (f"void (anonymous namespace)::multimem_all_gather_kernel<16>(char*, char*, {TORCH})", "all_gather"),
    ("c10d::symmetric_memory::barrier_kernel(unsigned int**, int, int, int, unsigned long)", "barrier"),
    ("c10d::nvshmem_extension::exchangeSplitAndOffset(long*, int, int)", "all_to_all"),
    ("void c10d::nvshmem_extension::exchangeSplitAndOffset_2d<false>(long*, long*, int, int, int)", "all_to_all"),
    ("one_shot_all_reduce_kernel", "all_reduce"),  # written in Triton
]
ONE_SIDED = [
    ("c10d::nvshmem_extension::allToAllV(void*, void*, long*, unsigned long, int, int)", "all_to_all"),
    ("c10d::symmetric_memory::put_signal_kernel(unsigned int**, int, int, int, int, unsigned long)", "signal"),
    ("c10d::symmetric_memory::wait_signal_kernel(unsigned int**, int, int, int, int, unsigned long)", "signal"),
    ("c10d::nccl_extension::lsa_put_signal_kernel(void**, void**, int, unsigned long, void const*)", "put_get"),
    ("void nvshmemi_proxy_rma_entrypoint<(nvshmemi_op_t)1, 0>(void*, void*)", "put_get"),
    ("nvshmemi_proxy_quiet_entrypoint()", "signal"),
]
INFERENCE = [
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)", "all_reduce"),
    (
        "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<(x)2, half, 8>()",
        "all_reduce",
    ),
    ("void ar_fusion::moefinalize_allreduce_fusion_kernel_oneshot_lamport<half, 4, true>()", "all_reduce"),
    ("void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8, true, false>(AllReduceParams)", "all_reduce"),
    ("void tensorrt_llm::kernels::mnnvl::twoshot_allreduce_kernel<8, float>(float*, float*, float**)", "all_reduce"),
    ("void mnnvl::oneshotAllreduceFusionKernel<8, __nv_bfloat16, true, float4>(__nv_bfloat16*)", "all_reduce"),
    (
        "quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half, CodecQ4<__half, 4>, true>, __half>",
        "all_reduce",
    ),
    ("void aiter::reduce_scatter_cross_device_store<__hip_bfloat16, 8>(aiter::RankData*)", "reduce_scatter"),
    ("void aiter::allgather_lastdim<__half, 8>(aiter::RankData*, aiter::RankSignals)", "all_gather"),
    ("allreduce_one_shot_push_intra_node_kernel", "all_reduce"),
    ("void userbuffers_fp16_sum_inplace_gpu_rw<8>(int, int, int)", "all_reduce"),
    ("void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop_fp8<4, __nv_fp8_e4m3>(int, int)", "reduce_scatter"),
    ("void userbuffers_fp16_sum_inplace_gpu_rw_ag<8>(int, int)", "all_gather"),
    ("void barrier_on_stream_kernel_threadgroup<(threadgroup_t)1>(int, int)", "barrier"),
    ("void alltoall_on_stream_kernel<char>(int, char*, char const*, unsigned long)", "all_to_all"),
    ("void rdxn_on_stream_kernel<float, (rdxn_ops)3>(int, float*, float const*, unsigned long)", "all_reduce"),
]
EXPERTS = [
    ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*, int*, long*)", "dispatch", True),
    ("void deep_ep::intranode::combine<__nv_bfloat16, 8, 768, 4096>(__nv_bfloat16*, float*)", "combine", False),
    ("void deep_ep::intranode::notify_dispatch<8>(int const*, int*, int const*)", "all_to_all", True),
    ("void deep_ep::intranode::cached_notify_combine<8>(void**, int*, int, int)", "barrier", True),
    ("void internode_ll::dispatch<true, false, 7168>(void*, void*, int*)", "dispatch", False),
    ("void deep_ep::internode_ll::combine<false, 7168, 9, 4>(void*, void*)", "combine", False),
    ("void deep_ep::elastic::hybrid_dispatch_impl<true, false, 24>(void*)", "dispatch", False),
    ("void tensorrt_llm::kernels::moe_comm::moeA2ADispatchKernel<BlockPolicy, 8>(int const*)", "dispatch", True),
    ("void moeA2ACombineKernel<__nv_bfloat16, WarpPolicy, 8>(CombineKernelPointers, int)", "combine", True),
    ("void tensorrt_llm::kernels::moeAllToAllKernel<4, false>(FusedMoeCommKernelParam)", "all_to_all", False),
    (
        "void mori::moe::EpDispatchIntraNodeKernel<__hip_bfloat16>(EpDispatchCombineArgs<__hip_bfloat16>)",
        "dispatch",
        True,
    ),
    ("EpCombineIntraNodeKernel_bf16_p2p", "combine", True),
    ("EpDispatchLowLatencyAsyncSendTransfer_bf16", "dispatch", False),
    ("void a2a_dispatch_send_kernel<16, true, 1>(unsigned long, unsigned long)", "dispatch", False),
    (
        "void (anonymous namespace)::dispatchKernel<10u, true, false>(int*, unsigned long, std::byte*)",
        "dispatch",
        False,
    ),
    ("kernel_combine_token", "combine", False),
]
COMPUTE = [
    "void at::native::foo<ncclFoo>(int)",
    "void at::native::elementwise_kernel<128, 4, f<ncclDataType_t>(at::Tensor&)::{lambda(int)#1}>(int, rccl::T)",
    "void flash::enable_sm90<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2>>>(Params)",
    "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*, int*, int*, int*, bool*, int, int)",
    "void deep_ep::internode_ll::query_mask_buffer(int*, int, int*)",
    "void deep_ep::elastic::combine_reduce_epilogue_impl<true, true, 24>(__nv_bfloat16*)",
    "EpDispatchCombineResetKernel_bf16",
    "void aiter::local_device_load_rmsnorm_512n<__half, 8, 2>(aiter::RankSignals, __half*)",
    "nvshmem_app::compute_output(float*)",
    "void my_nvshmem::scale_input<4>(float*)",
    "void nvshmem_target_kernel(float*)",
    "void moe::DispatchKernel<8>(__nv_bfloat16 const*, int const*, float const*)",
    "triton_poi_fused_all_gather_into_tensor_wait_tensor_0",
    "triton_red_fused__to_copy_add_native_layer_norm_2",
    "void other::barrier_kernel(unsigned int**)",
    "void cub::DeviceReduceKernel<cub::Policy, float*, int>(float*)",
]


def test_a_kernel_of_the_table() -> None:
    """Names as in public code and traces: what each carries out, and whether all ranks wait in it for all others."""
    rows = [*NCCL, *((*row, True) for row in SYMMETRIC + INFERENCE), *((*row, False) for row in ONE_SIDED), *EXPERTS]
    for name, kind, waits in rows:
        of_its_kind = bool(kind) and COLLECTIVES[kind].synchronizing
        assert communication_names([name])[0], name
        assert (name, kind) == (name, kind_of(name))
        assert waits == (of_its_kind if synchronizes(name) is None else synchronizes(name)), name


def test_a_kernel_that_computes() -> None:
    """Neither a template argument nor a part of a word nor a library's namespace makes a kernel communicate."""
    assert [] == [name for name in COMPUTE if communication_names([name])[0]]


def test_a_bad_pattern_is_wrong_use() -> None:
    """The message quotes a pattern that is not a regular expression."""
    with pytest.raises(UsageError, match=r"--comm-pattern '\('"):
        communication_names(["a"], ["("])
    with pytest.raises(UsageError, match="--comm-pattern"):
        communication_names(["a"], [""])


def test_a_line_of_the_table_holds_a_pattern_and_its_source() -> None:
    """Each says which public repository defines such kernels, or that none was found, and is of a known kind."""
    for kernel in KERNELS:
        assert not re.search(kernel.pattern, "", re.IGNORECASE), kernel
        assert re.match(r"[\w-]+/[\w-]+( \S|$)|unverified: ", kernel.source), kernel
        assert not kernel.kind or kernel.kind in COLLECTIVES, kernel


def test_reading_and_classification_use_the_same_table(tmp_path: Path) -> None:
    """A communication kernel may wait for its peers past later kernels of its stream: it is not cut short."""
    names = ("ncclDevKernel_AllReduce", "void deep_ep::internode_ll::dispatch<true>(int)", "my_ring")
    for name, patterns in zip(names, ((), (), ("MY_r",)), strict=True):
        file = KinetoFile().kernel(name, 200, 2_000_200, 190, stream=7)
        for k in range(20):
            file.kernel("gemm", 210 + 10 * k, 218 + 10 * k, 195 + k, stream=7)
        trace = read_trace(file.write(tmp_path / "t.json"), comm_patterns=patterns)
        (timeline,) = build_timelines(trace, 0, patterns)
        assert () == trace.damage
        assert Kind.COMMUNICATION == timeline.kind[0]
        assert 2_000_000_000 == timeline.end_ns[0] - timeline.start_ns[0]
