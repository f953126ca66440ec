"""What a GPU holds, by strategy."""

from __future__ import annotations

import pytest

from dptrace.model.training.layout import Layout, strategy_layout
from dptrace.model.training.memory.activations import ActivationPlan
from dptrace.model.training.memory.per_gpu import ddp_wall, gpu_memory, gpus_for_state
from dptrace.model.training.memory.state import state_bytes
from dptrace.model.training.shape import decoder_shape

SEVEN = decoder_shape(32, 4096, counted=7e9)
FULL = ActivationPlan(recompute="full")


def state_gb(strategy: str, gpus: int = 8, tensor: int | None = None, stages: int | None = None) -> float:
    layout = strategy_layout(strategy, gpus, tensor=tensor, stages=stages)
    return gpu_memory(SEVEN, state_bytes(), layout, FULL, 1, 32).state.total / 1e9


def test_the_guides_table_of_models() -> None:
    """Guide, section 1.2: bytes of state, and the A100s of 80 GB that hold them."""
    billions = (7, 13, 65, 175, 540)
    states = [16e9 * size for size in billions]

    assert [112, 208, 1040, 2800, 8640] == [state / 1e9 for state in states]
    assert [2, 3, 13, 35, 108] == [gpus_for_state(state, 80e9) for state in states]


def test_the_guides_stages_of_zero() -> None:
    """Guide, section 8.2, with 12 bytes of optimizer state: 112, 38.5, 26.25 and 14 GB for 7 billion parameters on 8.

    The guide's figure has 140, 42, 30 and 18 GB: it counts 16 bytes for the optimizer besides weights and gradients.
    """
    assert [112, 38.5, 26.25, 14] == [pytest.approx(state_gb(name)) for name in ("ddp", "zero1", "zero2", "zero3")]


def test_the_wall_of_ddp() -> None:
    """Guide, section 7.7, by its own 16 bytes: 5 billion parameters on 80 GB, 2.5 on 40 GB (it says 10 and 5)."""
    assert (5e9, 2.5e9) == (ddp_wall(80e9), ddp_wall(40e9))


def test_sharding_within_a_node_takes_what_a_node_takes() -> None:
    """HSDP on four nodes holds as much as FSDP on one."""
    assert pytest.approx(state_gb("fsdp", 8)) == state_gb("hsdp", 32)


def test_split_layers_and_stages_divide_the_state() -> None:
    """Tensor parallel exactly; stages by layers, and the first holds the embedding as well."""
    assert pytest.approx(14) == state_gb("tp", 8)
    assert 14 < state_gb("pp", 8, stages=8) < 14 + 16 * 51_200 * 4096 * 1.1 / 1e9
    assert state_gb("3d", 8, tensor=2, stages=2) < state_gb("pp", 8, stages=2)


def test_experts_are_spread() -> None:
    """Of Mixtral's 46.7 billion parameters, 45.1 are experts': eight GPUs hold an eighth of those each."""
    mixtral = decoder_shape(
        32, 4096, key_value_heads=8, mlp=14_336, vocabulary=32_000, family="llama", experts=8, top_k=2
    )
    held = gpu_memory(mixtral, state_bytes(), strategy_layout("ep", 8, experts=8), FULL, 1).state.total
    experts = 32 * 8 * 3 * 4096 * 14_336

    assert pytest.approx(16 * (mixtral.parameters - experts + experts / 8)) == held


def test_gpipe_keeps_more_than_1f1b() -> None:
    """The first of four stages keeps 32 micro-batches' activations, or 4."""
    kept = {}
    for schedule in ("gpipe", "1f1b"):
        layout = Layout(strategy="pp", data=1, stages=4, schedule=schedule)
        kept[schedule] = gpu_memory(SEVEN, state_bytes(), layout, FULL, 1, 32).activation_bytes

    assert pytest.approx(32 / 4) == kept["gpipe"] / kept["1f1b"]


def test_gathered_layers_count() -> None:
    """Fully sharded, a GPU also holds two whole layers and a layer's gradients."""
    memory = gpu_memory(SEVEN, state_bytes(), strategy_layout("fsdp", 64), FULL, 1)
    layer = SEVEN.dense_layer_parameters * SEVEN.scale

    assert pytest.approx(max(3 * layer * 2, 4 * 53_248 * 4096 * SEVEN.scale)) == memory.gathered_bytes
