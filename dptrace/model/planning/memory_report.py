"""Memory of a described training as a table: the contents of ``dptrace memory --json``."""

from __future__ import annotations

from typing import Any

import msgspec

from dptrace.errors import UsageError
from dptrace.model.planning.describe import Description
from dptrace.model.training.layout import STRATEGIES, Layout
from dptrace.model.training.memory import (
    RECOMPUTE,
    USABLE,
    GpuMemory,
    StateBytes,
    ddp_wall,
    end_bytes,
    gpus_for_state,
    model_activation_bytes,
)
from dptrace.model.training.plan import Plan
from dptrace.model.training.shape import ModelShape

__all__ = ["memory_parts", "memory_report", "shape_dict", "whole_bytes"]

_STRATEGY = ("ddp", "zero1", "zero2", "zero3")
"""The strategy that a stage of ZeRO is, where none is given."""

SCHEMA = 1


def memory_report(description: Description) -> dict[str, Any]:
    """Compute what a training takes on each GPU, by the described strategy and by all others.

    Raises:
        UsageError: the description is incomplete, or its numbers do not divide.
    """
    description.check()
    layout = description.layout(description.strategy or _STRATEGY[description.zero or 0])
    plan = _plan(description, layout, description.recompute or "none")
    plan.check()
    if description.cpu_offload and not plan.offload:
        raise UsageError("--cpu-offload is for sharded parameters: add --strategy fsdp, hsdp or --zero 3.")
    each, shape, memory = plan.state, plan.shape, plan.memory
    state = each.total * shape.parameters
    whole = msgspec.structs.replace(plan.activation_plan, tensor=1, sequence=False)
    content = {
        "schema": SCHEMA,
        "kind": "memory",
        "params": shape.parameters,
        "active_params": shape.active_parameters,
        "shape": shape_dict(shape),
        "precision": plan.precision,
        "optimizer": plan.optimizer,
        "bytes_per_parameter": _state_dict(each, "") | {"total": each.total},
        "model_state_bytes": state,
        "activation_bytes": model_activation_bytes(shape, plan.micro_batch, whole),
        "head_activation_bytes": end_bytes(shape, plan.micro_batch, whole),
        "gpu": plan.gpu.name,
        "gpu_memory_bytes": plan.gpu.memory_bytes,
        "usable_share": USABLE,
        "gpus": description.gpus,
        **_layout_dict(plan),
        "per_gpu": memory_parts(memory),
        "per_gpu_bytes": memory.total,
        "host_bytes": memory.host_bytes,
        "fits": plan.fits,
        "gpus_for_state": gpus_for_state(state, plan.gpu.memory_bytes),
        "ddp_wall_params": ddp_wall(plan.gpu.memory_bytes, each.total),
        "strategies": _strategies(description),
        "assumptions": [line for line in description.assumptions() if not line.startswith("Batch")],
    }
    rounded: dict[str, Any] = whole_bytes(content)
    return rounded


def whole_bytes(content: Any) -> Any:
    """Round all bytes in a table of figures, which formulas give as fractions."""
    if isinstance(content, dict):
        return {key: _rounded(key, value) for key, value in content.items()}
    return [whole_bytes(item) for item in content] if isinstance(content, list) else content


def _rounded(key: str, value: Any) -> Any:
    bytes_follow = key.endswith(("_bytes", "params")) or key in ("none", "selective", "full")
    return round(value) if bytes_follow and isinstance(value, float) else whole_bytes(value)


def _plan(description: Description, layout: Layout, recompute: str) -> Plan:
    size = description.micro_batch or 1
    batch = description.samples
    if description.batch and not description.micro_batch and layout.stages == 1:
        size = max(1, batch // layout.data)
    whole = layout.data * size
    if description.batch and batch % whole:
        raise UsageError(
            f"--batch {batch}: must be divisible by the data-parallel GPUs × the micro-batch, {layout.data} × {size}."
        )
    return description.plan(layout, max(batch // whole, 1) * whole, size, recompute)


def _strategies(description: Description) -> list[dict[str, Any]]:
    """List what each strategy takes on a GPU, with each kind of recomputation."""
    rows = []
    for name in STRATEGIES:
        if name == "fsdp" or (name == "ep" and description.experts == 1):  # fsdp is zero3
            continue
        try:
            layout = description.layout(name)
            plans = {recompute: _plan(description, layout, recompute) for recompute in RECOMPUTE}
            plans["none"].check()
        except UsageError:
            continue
        rows.append(
            {
                "strategy": name,
                "layout": layout.name,
                "state_bytes": plans["none"].memory.state.total,
                "per_gpu_bytes": {recompute: plan.memory.total for recompute, plan in plans.items()},
                "fits": {recompute: plan.fits for recompute, plan in plans.items()},
            }
        )
    return rows


def shape_dict(shape: ModelShape) -> dict[str, Any]:
    """Return the numbers of a shape by their names on the command line."""
    return {
        "layers": shape.layers,
        "hidden": shape.hidden,
        "heads": shape.heads,
        "kv_heads": shape.key_value_heads,
        "mlp": shape.mlp,
        "vocab": shape.vocabulary,
        "seq": shape.sequence,
        "experts": shape.experts,
        "top_k": shape.top_k,
        "gated": shape.gated,
    }


def _layout_dict(plan: Plan) -> dict[str, Any]:
    layout = plan.layout
    return {
        "strategy": layout.strategy,
        "layout": layout.name,
        "degrees": {"dp": layout.data, "tp": layout.tensor, "pp": layout.stages, "ep": layout.expert},
        "zero": layout.zero,
        "schedule": layout.schedule if layout.stages > 1 else None,
        "micro_batch": plan.micro_batch,
        "micro_batches_in_flight": plan.memory.micro_batches_in_flight,
        "recompute": plan.recompute,
        "recompute_every": plan.recompute_every,
        "attention": "flash" if plan.flash else "standard",
        "sequence_parallel": layout.sequence,
    }


def _state_dict(state: StateBytes, suffix: str = "_bytes") -> dict[str, float]:
    return {
        f"parameters{suffix}": state.parameters,
        f"gradients{suffix}": state.gradients,
        f"optimizer{suffix}": state.optimizer,
    }


def memory_parts(memory: GpuMemory) -> dict[str, float]:
    """Return the parts of a GPU's memory."""
    return _state_dict(memory.state) | {
        "gathered_bytes": memory.gathered_bytes,
        "activation_bytes": memory.activation_bytes,
        "recompute_bytes": memory.recompute_bytes,
    }
