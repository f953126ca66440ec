"""Predicted steps against vTrain's A100s; tests/model/planning/test_published.py has other published trainings.

``data/vtrain_a100.csv`` holds the iteration times that vTrain's authors measured on up to 512 A100s, four InfiniBand
HDR ports on each node of eight (VIA-Research/vTrain, data/ground_truth_multi.csv; arXiv 2312.12391). The constants of
dptrace.model.training.step were chosen on its models of 3.6 and 39.1 billion parameters.
"""

from __future__ import annotations

import csv
from collections.abc import Collection
from pathlib import Path
from statistics import fmean, median

from dptrace.model.gpu_peaks import GPUS
from dptrace.model.training.communication import BETWEEN, WITHIN, Network, parse_link
from dptrace.model.training.layout import Layout
from dptrace.model.training.plan import Plan
from dptrace.model.training.shape import decoder_shape
from dptrace.model.training.step import predict_step

VTRAIN = Path(__file__).parent / "data" / "vtrain_a100.csv"


def network(within: str, between: str) -> Network:
    return Network(parse_link(within).derated(WITHIN), parse_link(between).derated(BETWEEN))


def vtrain_errors(billions: Collection[float]) -> list[float]:
    """Return predicted / measured - 1 for the rows of these sizes."""
    errors = []
    with VTRAIN.open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if float(row["parameters_billions"]) not in billions:
                continue
            number = {name: int(value) for name, value in row.items() if value.isdecimal()}
            layout = Layout(
                strategy="3d", data=number["data"], tensor=number["tensor"], stages=number["stages"], schedule="1f1b"
            )
            plan = Plan(
                shape=decoder_shape(number["layers"], number["hidden"], heads=number["heads"]),
                layout=layout,
                gpu=GPUS["a100"],
                network=network("nvlink3", "1.5us:12.5GB/s"),
                batch=number["batch"],
                micro_batch=number["micro_batch"],
                precision="fp16",
                recompute="full",
            )
            errors.append(predict_step(plan).step_s * 1e3 / float(row["measured_ms"]) - 1)
    return errors


def test_vtrains_models_that_were_not_fitted() -> None:
    """18.4 and 175 billion parameters, 36 plans: 4 % mean error."""
    errors = [abs(error) for error in vtrain_errors({18.4, 175.0})]

    assert 36 == len(errors)
    assert fmean(errors) < 0.05
    assert median(errors) < 0.04


def test_all_of_vtrains_models() -> None:
    """109 plans: 6.2 % mean, 3.3 % median error, without a bias above 5 %."""
    errors = vtrain_errors({3.6, 18.4, 39.1, 175.0})

    assert 109 == len(errors)
    assert fmean(map(abs, errors)) < 0.07
    assert median(map(abs, errors)) < 0.04
    assert abs(fmean(errors)) < 0.05
