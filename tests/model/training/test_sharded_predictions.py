"""Predicted MFU of fully sharded trainings against llm-foundry's measurements on 8 to 128 A100s and H100s.

``data/llm_foundry_fsdp.csv`` holds rows of the tables in mosaicml/llm-foundry, scripts/train/benchmarking/README.md:
MPT models with FSDP and FlashAttention, nodes connected by 1,600 Gb/s (A100) and 3,200 Gb/s (H100). Nothing was fitted
to them.
"""

from __future__ import annotations

import csv
from pathlib import Path
from statistics import fmean

from dptrace.model.gpu_peaks import GPUS
from dptrace.model.training.communication import BETWEEN, WITHIN, Network, parse_link
from dptrace.model.training.layout import Layout
from dptrace.model.training.plan import Plan
from dptrace.model.training.shape import decoder_shape
from dptrace.model.training.step import matmul_share, predict_step

TABLE = Path(__file__).parent / "data" / "llm_foundry_fsdp.csv"
LINKS = {"h100": ("nvlink4", "ib-ndr"), "a100": ("nvlink3", "ib-hdr"), "a100-40": ("nvlink3", "ib-hdr")}


def rows(precision: str, least_billions: float = 0.0, least_gpus: int = 1) -> list[dict[str, str]]:
    with TABLE.open(encoding="utf-8") as file:
        found = list(csv.DictReader(file))
    return [
        row
        for row in found
        if row["precision"] == precision
        and float(row["parameters_billions"]) >= least_billions
        and int(row["gpus"]) >= least_gpus
    ]


def plan(row: dict[str, str]) -> Plan:
    number = {name: int(value) for name, value in row.items() if value.isdecimal()}
    gpus, size = number["gpus"], number["micro_batch"]
    within, between = (parse_link(name) for name in LINKS[row["gpu"]])
    return Plan(
        shape=decoder_shape(
            number["layers"], number["hidden"], heads=number["heads"], sequence=number["sequence"], vocabulary=50_432
        ),
        layout=Layout(strategy="fsdp", data=gpus, zero=3, shards=gpus),
        gpu=GPUS[row["gpu"]],
        network=Network(within.derated(WITHIN), between.derated(BETWEEN)),
        batch=gpus * size * number["micro_batches"],
        micro_batch=size,
        precision=row["precision"],
        recompute=row["recompute"],
        flash=True,
        dropout=False,
    )


def errors(chosen: list[dict[str, str]]) -> list[float]:
    """Return predicted / measured - 1."""
    return [100 * predict_step(plan(row)).mfu / float(row["mfu_percent"]) - 1 for row in chosen]


def test_large_models_across_nodes() -> None:
    """30 and 65 billion parameters on 16 to 128 GPUs: 7 % mean error; FSDP hides its gathers between nodes, too."""
    found = errors(rows("bf16", least_billions=30, least_gpus=16))

    assert 10 == len(found)
    assert fmean(map(abs, found)) < 0.08
    assert abs(fmean(found)) < 0.03


def test_all_sizes() -> None:
    """34 trainings from 1.3 to 65 billion parameters: 11.5 % mean error; narrow models are predicted too slow."""
    found = errors(rows("bf16"))

    assert 34 == len(found)
    assert fmean(map(abs, found)) < 0.12


def test_float8_makes_products_faster_and_nothing_else() -> None:
    """1 and 3 billion parameters in float8: 11 % mean error, where twice the speed of 16 bits would be off by 47 %."""
    chosen = rows("fp8")
    # MFU counts against the peak of float8, so at twice the speed it stays that of 16 bits.
    twice = [predict_step(plan({**row, "precision": "bf16"})).mfu for row in chosen]

    assert fmean(map(abs, errors(chosen))) < 0.12
    assert fmean(100 * mfu / float(row["mfu_percent"]) for mfu, row in zip(twice, chosen, strict=True)) > 1.3


def test_the_share_of_a_narrower_type_is_smaller() -> None:
    """What surrounds the products takes a larger part of a shorter time."""
    shape = decoder_shape(32, 4096)
    for gpu in GPUS.values():
        types = [kind for kind in ("tf32", "bf16", "fp8") if kind in gpu.peaks.tflops]
        shares = [matmul_share(gpu, shape, 1, 1, kind) for kind in types]
        assert sorted(shares, reverse=True) == shares, gpu
