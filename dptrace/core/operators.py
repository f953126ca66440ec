"""The operators whose FLOPs are known: their inputs are read from every file, for what a step computes."""

from __future__ import annotations


def _in(namespace: str, names: str) -> set[str]:
    return {f"{namespace}::{name}" for name in names.split()}


PRODUCTS = frozenset(
    _in(
        "aten",
        "mm bmm dot mv vdot addmm addmm_ addmv addmv_ addbmm addbmm_ baddbmm baddbmm_ _addmm_activation _int_mm "
        "_grouped_mm _scaled_mm _scaled_mm_v2 _scaled_grouped_mm mkldnn_linear mkldnn_linear_pointwise "
        "_convolution convolution convolution_backward convolution_overrideable cudnn_convolution "
        "cudnn_convolution_backward miopen_convolution miopen_convolution_backward mkldnn_convolution "
        "_cudnn_attention_forward _cudnn_attention_backward _efficient_attention_forward "
        "_efficient_attention_backward _flash_attention_forward _flash_attention_backward "
        "_scaled_dot_product_cudnn_attention _scaled_dot_product_cudnn_attention_backward "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_efficient_attention_backward "
        "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_backward "
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention_for_cpu_backward "
        "_scaled_dot_product_fused_attention_overrideable _scaled_dot_product_fused_attention_overrideable_backward",
    )
    | _in("mkl", "_mkl_linear")
    | _in("mkldnn", "_linear_pointwise _convolution_pointwise")
    | _in("aiter", "gemm_a16w16 _flash_attn_forward _flash_attn_backward fmha_v3_fwd mha_fwd mha_bwd")
    | _in("aiter", "wrapper_fmha_v3_fwd wrapper_fmha_v3_bwd")
    | _in("trtllm", "cublas_scaled_mm")
    | _in("flash_attn", "_flash_attn_forward _flash_attn_backward _flash_attn_varlen_forward")
    | _in("flash_attn", "_flash_attn_varlen_backward")
    | _in("flash_attn_3", "_flash_attn_forward _flash_attn_backward fwd bwd")
)
"""Products of matrices, convolutions and attention; ``dptrace.model.operator_costs`` has a formula for each."""
