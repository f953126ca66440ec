"""Worked numbers of the five documents that dptrace grew from, by its formulas; docs/documents.md lists them.

Where a document contradicts itself or the hardware, the right value is expected and the docstring says what it has.
"""

from __future__ import annotations

import re

import pytest

from dptrace.model.planning.describe import Description
from dptrace.model.planning.recorded import perceptron_parameters
from dptrace.model.planning.reports import predict_report
from dptrace.model.planning.search import layouts, plans
from dptrace.model.scaling import communication_fraction, gustafson_efficiency
from dptrace.model.training.communication import parse_link, sent_bytes
from dptrace.model.training.plan import GPUS, Plan
from dptrace.model.training.step import predict_step, traffic
from dptrace.record.options.modes import WIDTHS
from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "documents.md"


def plan(**described: object) -> Plan:
    one = Description(**{"micro_batch": 1, "recompute": "none", **described})  # type: ignore[arg-type]
    return plans(one, next(layouts(one)))[0]


@pytest.mark.parametrize(("name", "millions"), [("small", 1.5), ("medium", 8.4), ("large", 35.2), ("xlarge", 52.0)])
def test_the_workshops_models(name: str, millions: float) -> None:
    """Workshop, table of models (the comments in its code say 1.2, 7.2 and 35 million)."""
    assert millions == round(perceptron_parameters(tuple(WIDTHS[name])) / 1e6, 1)


@pytest.mark.parametrize(
    ("millions", "megabytes", "milliseconds"),
    [(25, 100, 0.5), (340, 1360, 6.8), (1500, 6000, 30), (7000, 28_000, 140), (70_000, 280_000, 1400)],
)
def test_the_guides_volumes_of_ddp(millions: float, megabytes: float, milliseconds: float) -> None:
    """Guide, section 7.4: bytes in bfloat16 among many GPUs, and their time at 200 GB/s."""
    volume = sent_bytes("all_reduce", 2e6 * millions, 1 << 20)

    assert pytest.approx(megabytes * 1e6, rel=1e-5) == volume
    assert pytest.approx(milliseconds / 1e3, rel=1e-5) == volume / 200e9


def test_the_pages_seven_billion_parameters() -> None:
    """Data Parallel & DDP: 24.5 GB a step take 490 ms at 50 GB/s; at NVLink 4's 450 GB/s, 54 ms.

    The page calls 50 GB/s NVLink's: that is one of its 18 links in both directions.
    """
    volume = sent_bytes("all_reduce", 14e9, 8)

    assert (24.5e9, 0.49) == (volume, volume / 50e9)
    assert pytest.approx(0.054, abs=0.001) == volume / parse_link("nvlink4").bytes_per_s


def test_buckets_of_seven_billion_parameters() -> None:
    """Data Parallel & DDP: 25 MiB buckets of 14 GB are 535 all-reduces (the page says 50 to 100)."""
    (one,) = traffic(plan(params=7e9, strategy="ddp"))

    assert 535 == one.calls == -(-14_000_000_000 // (25 << 20)) + 0


def test_the_efficiency_of_a_communication_fraction() -> None:
    """Data Parallelism page: with half of a step in communication, efficiency falls below 0.6 from 6 GPUs on."""
    half = communication_fraction(0.5, 1.0)

    assert gustafson_efficiency(half, 5) >= 0.6 > gustafson_efficiency(half, 6)


def test_the_gospels_all_reduce_times() -> None:
    """AllReduce Gospel, simulator: 70 billion float32 gradients at 600 GB/s: 0.47 s on 2 GPUs, 0.92 s on 64.

    600 GB/s are NVLink 3's two directions together; an all-reduce has 300 each way.
    """
    times = [sent_bytes("all_reduce", 4 * 70e9, gpus) / 600e9 for gpus in (2, 64)]

    assert [pytest.approx(0.467, abs=0.001), pytest.approx(0.919, abs=0.001)] == times
    assert 300e9 == parse_link("nvlink3").bytes_per_s


def test_the_gospels_table() -> None:
    """AllReduce Gospel, simulator: with a fixed batch, the GPUs together take longer the more there are."""
    described = Description(
        params=70e9, gpus=64, gpu="a100", link="nvlink3", precision="fp32", batch=256, seq=2048, strategy="ddp",
        gpus_per_node=64, micro_batch=1, recompute="none",
    )  # fmt: skip
    rows = predict_report(described)["scaling"][:7]
    shares = [step["strong_step_s"] * step["gpus"] for step in rows]

    assert [1, 2, 4, 8, 16, 32, 64] == [row["gpus"] for row in rows]
    assert shares == sorted(shares)
    assert 1 == rows[0]["strong_efficiency"] >= rows[-1]["strong_efficiency"]


def test_halving_the_loss() -> None:
    """Guide, section 1.1: with an exponent of 0.076, half the loss takes 9,100 times the parameters (it says 8,000)."""
    assert pytest.approx(9_140, rel=0.01) == 2 ** (1 / 0.076)


def test_dense_peaks_and_one_direction() -> None:
    """Guide, section 1.5: its H100 (1,979 and 989) and A100 (624 and 312) are with sparsity; dense is half of it."""
    assert [989.4, 494.7] == [pytest.approx(GPUS["h100"].peak(kind) / 1e12) for kind in ("bf16", "tf32")]
    assert [312, 156] == [pytest.approx(GPUS["a100"].peak(kind) / 1e12) for kind in ("bf16", "tf32")]
    assert 25e9 == parse_link("ib-hdr").bytes_per_s  # 200 Gb/s, not 200 GB/s


def test_the_guides_ridges() -> None:
    """Guide, section 6.7, dense and one way: 2,200 for an H100, 1,040 for an A100, 20,000 over NDR (520 and 40,000)."""
    h100, a100 = GPUS["h100"].peak("bf16"), GPUS["a100"].peak("bf16")

    assert pytest.approx(2_199, abs=1) == h100 / parse_link("nvlink4").bytes_per_s
    assert pytest.approx(1_040) == a100 / parse_link("nvlink3").bytes_per_s
    assert pytest.approx(19_788) == h100 / parse_link("ib-ndr").bytes_per_s
    assert pytest.approx(79_152) == h100 / parse_link("eth-100").bytes_per_s


def test_the_guides_gpt3() -> None:
    """Guide, section 12.1: 50 MB between stages, and 44 GB of gradients for each of 8."""
    one = plan(params=175e9, layers=96, hidden=12_288, gpus=64, strategy="3d", tp=1, pp=8, batch=256)
    found = {each.what: each for each in traffic(one)}

    assert pytest.approx(50.3, abs=0.1) == found["micro-batches"].bytes / 1e6
    gradients = found["gradients"].bytes * found["gradients"].calls
    assert pytest.approx(44e9, rel=0.02) == gradients


def test_the_guides_grid() -> None:
    """Guide, sections 11.1 and 11.8: 8 × 4 × 4 = 128 GPUs; with 8 of each and experts inside of data parallelism, 512.

    Section 11.8 multiplies by EP too and gets 4,096; experts are spread over GPUs that data parallelism already counts.
    """
    one = Description(params=175e9, gpus=128, strategy="3d", tp=8, pp=4).layout("3d")

    assert (8, 4, 4, 128) == (one.tensor, one.stages, one.data, one.gpus)


def test_the_guides_llamas() -> None:
    """Guide, section 12.2: LLaMA-65B on 2,048 A100s with 1.4 trillion tokens: 21 days at its 380 tokens/s of a GPU.

    Its 21 days for 7 billion parameters on 1,000 GPUs are not LLaMA's: 82,432 GPU-hours are 3.4 days.
    """
    described = Description(
        params=65.2e9, layers=80, hidden=8192, heads=64, vocab=32_000, family="llama", gpus=2048, gpu="a100",
        link="nvlink3,ib-hdr", strategy="fsdp", batch=2048, attention="flash",
    )  # fmt: skip
    content = predict_report(described, tokens=1.4e12)

    assert pytest.approx(21, rel=0.25) == content["training_days"]
    assert pytest.approx(3.4, abs=0.05) == 82_432 / 1000 / 24


def test_overlap_is_at_least_the_longer_of_both() -> None:
    """Data Parallel & DDP, and the Data Parallelism page: T = T_comp + T_comm without, max of both with overlap."""
    step = predict_step(plan(params=7e9, strategy="ddp", batch=8, link="eth-100"))

    assert pytest.approx(step.compute_s + step.communication_s + step.optimizer_s) == step.serial_s
    assert pytest.approx(max(step.compute_s, step.communication_s) + step.optimizer_s) == step.ideal_s


def test_the_list_names_tests_that_exist() -> None:
    """docs/documents.md: each row has a known status, and each test file that it names is there."""
    text = PAGE.read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    named = set(re.findall(r"tests/[\w/]+\.py", text))

    assert len(rows) > 60
    assert not [name for name in named if not (ROOT / name).exists()]
    known = ("computed", "corrected", "measured", "explained", "Status", "not computed", "prose")
    assert not [row for row in rows if not row.rstrip(" |").rsplit("|", 1)[-1].strip().startswith(known)]
