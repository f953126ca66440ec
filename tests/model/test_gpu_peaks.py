"""Peaks of GPUs, found by the names that traces record."""

from __future__ import annotations

import pytest

from dptrace.core.gpu import GpuProperties
from dptrace.model.gpu_peaks import (
    INTERCONNECTS,
    PEAKS,
    GpuPeak,
    achieved_flops_per_s,
    gpu_peak,
    nearest_interconnect,
    no_peak_advice,
    transformer_flops,
    utilization,
)


def known(name: str, sms: int = 0) -> GpuPeak:
    """Return the peak of a GPU that has one."""
    found = gpu_peak(GpuProperties(name, sms))
    assert found is not None, name
    return found


@pytest.mark.parametrize(
    ("name", "sms", "row", "bf16", "memory"),
    [
        ("NVIDIA H100 80GB HBM3", 132, "H100 SXM", 989.4, 3.35),
        ("NVIDIA H100 PCIe", 114, "H100 PCIe", 756, 2.0),
        ("NVIDIA H100 NVL", 132, "H100 NVL", 835, 3.9),
        ("NVIDIA H200", 132, "H200", 989.4, 4.8),
        ("NVIDIA A100-PG509-200", 108, "A100 40 GB", 312, 1.555),
        ("NVIDIA A100-SXM4-40GB", 108, "A100 40 GB", 312, 1.555),
        ("NVIDIA A100-SXM4-80GB", 108, "A100 80 GB SXM", 312, 2.039),
        ("NVIDIA A100 80GB PCIe", 108, "A100 80 GB PCIe", 312, 1.935),
        ("NVIDIA B200", 148, "B200", 2250, 8.0),
        ("NVIDIA GB200", 148, "GB200", 2500, 8.0),
        ("NVIDIA L4", 58, "L4", 121, 0.3),
        ("NVIDIA L40S", 142, "L40S", 362, 0.864),
        ("AMD Instinct MI300X", 304, "MI300X", 1307.4, 5.3),
        ("AMD Instinct MI300X VF", 304, "MI300X", 1307.4, 5.3),
        ("AMD Instinct MI210", 104, "MI210", 181, 1.6),
        ("AMD Instinct MI250X / MI250", 110, "MI250X, one die", 191.5, 1.6),
    ],
)
def test_names_as_traces_write_them(name: str, sms: int, row: str, bf16: float, memory: float) -> None:
    """Each form of a name leads to its row, with all its multiprocessors."""
    found = known(name, sms)

    assert row == found.name
    assert pytest.approx(bf16 * 1e12) == found.flops_per_s("bf16")
    assert pytest.approx(memory * 1e12) == found.bytes_per_s


@pytest.mark.parametrize(
    "name",
    ["NVIDIA T400", "NVIDIA A10G", "NVIDIA A1000", "NVIDIA L40", "NVIDIA GeForce RTX 4090 Laptop GPU", "GPU", ""],
)
def test_names_that_only_resemble_a_known_one_are_unknown(name: str) -> None:
    """A guess would make every share wrong; the advice names the option."""
    assert gpu_peak(GpuProperties(name)) is None
    assert "--peak-tflops" in no_peak_advice(name)


def test_a_part_of_a_gpu_has_that_part_of_its_peak() -> None:
    """MIG with 16 of 132 multiprocessors; a name with MIG and no count could be any part."""
    mig = "NVIDIA H100 80GB HBM3 MIG 1g.10gb"

    assert pytest.approx(989.4e12 * 16 / 132) == known(mig, 16).flops_per_s("bf16")
    assert pytest.approx(3.35e12 * 16 / 132) == known(mig, 16).bytes_per_s
    assert gpu_peak(GpuProperties(mig)) is None
    assert gpu_peak(GpuProperties("NVIDIA A100-SXM-64GB", 124)) is None


def test_an_unnamed_amd_gpu_is_known_by_its_units_and_wavefront() -> None:
    """Capability 9.0 is H100's too: the wavefront of 64 tells them apart."""
    die = GpuProperties("AMD Radeon Graphics", 104, (9, 0), 64)

    found = gpu_peak(die)

    assert found is not None
    assert 181e12 == found.flops_per_s("bf16")
    assert gpu_peak(GpuProperties("AMD Radeon Graphics", 104, (9, 0), 32)) is None


def test_float32_counts_against_tf32_where_the_gpu_has_it() -> None:
    """A V100 has no TF32 and no bf16."""
    v100 = known("Tesla V100-SXM2-16GB", 80)

    assert (156e12, 15.7e12, None) == (
        known("NVIDIA A100-SXM4-40GB").flops_per_s("fp32"),
        v100.flops_per_s("fp32"),
        v100.flops_per_s("bf16"),
    )


def test_sixteen_bit_peaks_are_units_times_clock() -> None:
    """Peak = multiprocessors × FLOP per clock × clock, with the boost clocks of the data sheets, within 2 %."""
    clocks = {"A100 40 GB": (2048, 1.41), "H100 SXM": (4096, 1.83), "L40S": (1024, 2.52), "MI300X": (2048, 2.1)}

    for name, (per_clock, ghz) in clocks.items():
        row = next(row for row in PEAKS if row.name == name)
        assert pytest.approx(row.sms * per_clock * ghz / 1e3, rel=0.02) == row.tflops["fp16"]


def test_the_ridge_is_where_both_limits_meet() -> None:
    """An H100's: 989.4 TFLOP/s over 3.35 TB/s."""
    peak = known("NVIDIA H100 80GB HBM3")

    assert pytest.approx(295.3, abs=0.1) == (peak.flops_per_s("bf16") or 0) / peak.bytes_per_s


# The table of known interconnects, and the nearest to a link.


MEDIA = sorted({one.medium for one in INTERCONNECTS})


def test_each_is_most_like_itself() -> None:
    """At nominal speed and latency, both ratios are 1; every entry has a source."""
    for known in INTERCONNECTS:
        found = nearest_interconnect(known.bytes_per_s, known.alpha_s, MEDIA)

        assert (known, 1.0, 1.0) == (found.interconnect, found.bandwidth_ratio, found.latency_ratio)
        assert known.source


def test_latency_decides_between_links_of_one_bandwidth() -> None:
    """400 Gb/s are 50 GB/s for Ethernet and for InfiniBand."""
    assert "InfiniBand NDR" == nearest_interconnect(45e9, 2e-6, ["network"]).interconnect.name
    assert "400 Gb Ethernet" == nearest_interconnect(45e9, 60e-6, ["network"]).interconnect.name


def test_only_what_comes_into_question_is_compared() -> None:
    """GPUs of one machine are not linked by a network; an unmeasured latency is not compared."""
    found = nearest_interconnect(27e9, 0.0, ["nvlink", "pcie"])

    assert "PCIe 4.0 x16" == found.interconnect.name
    assert found.latency_ratio is None
    assert found.bandwidth_ratio == pytest.approx(27 / 31.5)


# Model and hardware FLOPs utilization.


def test_a_dense_transformer_costs_six_operations_for_each_parameter_and_token() -> None:
    """GPT-3's 175 billion parameters on 300 billion tokens: 3.15e23, the figure of its paper."""
    assert pytest.approx(3.15e23) == transformer_flops(175e9, 300e9)
    assert pytest.approx(1.05e23) == transformer_flops(175e9, 300e9, training=False)


def test_attention_adds_its_products() -> None:
    """24 layers of width 1024 on sequences of 559: 12·L·H·d·T for each of 8,944 tokens, a third of it forward."""
    forward = transformer_flops(0, 8944, layers=24, width=1024, sequence=559, training=False)

    assert pytest.approx(24 * 4 * 16 * 559**2 * 1024) == forward


def test_utilization_is_the_share_of_the_peak() -> None:
    """500 TFLOP/s of 1,000; no time has none."""
    assert 0.5 == utilization(5e12, 10_000_000, 1e15)
    assert utilization(5e12, 0, 1e15) is None
    assert utilization(5e12, 1, 0) is None
    assert achieved_flops_per_s(5e12, 10_000_000) == 5e14
