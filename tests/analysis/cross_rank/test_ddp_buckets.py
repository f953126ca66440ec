"""DDP's buckets among the collectives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import dptrace
from dptrace.analysis.cross_rank.ddp_buckets import Bucket, buckets, instance_names
from dptrace.analysis.matching.match import Matches, match
from dptrace.timeline.model import Collective
from tests.support.rank_cases import rank, reduce

MS = 1_000_000
RUNS = Path(__file__).resolve().parents[3] / "traces"
DDP = {"rebuilt_bucket_sizes": "100, 300, 100", "rebuilt_per_bucket_param_indices": "5 4, 3, 2 1 0"}


def reduced(*sizes: int) -> Matches:
    """Make a step of all-reduces of these sizes on two ranks."""
    calls = [reduce(0, (i + 1) * MS, size) for i, size in enumerate(sizes)]
    return match([rank(0, calls), rank(1, calls)])


@pytest.mark.parametrize("info", [{"ddp": DDP}, {"ranks": [{"rank": 0}, {"rank": 1, "ddp": DDP}]}])
def test_buckets_are_what_has_their_sizes_in_turn(info: dict[str, Any]) -> None:
    """Another all-reduce between them is not a bucket; two backward passes per step reduce all buckets twice."""
    matches = reduced(100, 300, 8, 100, 100, 300, 100)

    found = buckets(matches, info)

    assert found is not None
    assert [0, 1, -1, 2, 0, 1, 2] == found.bucket.tolist()
    assert (Bucket(0, 100, (5, 4)), Bucket(1, 300, (3,)), Bucket(2, 100, (2, 1, 0))) == found.buckets
    assert () == found.notes
    assert ["bucket 0", "bucket 1", "", "bucket 2"] == instance_names(matches, found)[:4]


def test_each_group_of_replicas_has_its_own() -> None:
    """With layers shared by ranks there are several groups; the labeled all-reduces of those layers are not buckets."""
    devices = []
    for number in range(4):
        about: dict[str, Any] = {"group": str(number % 2), "group_size": 2, "ranks": (number % 2, number % 2 + 2)}
        calls = [reduce(0, (i + 1) * MS, size, **about) for i, size in enumerate((100, 300, 100))]
        calls += [reduce(0, 2 * MS + 500, 300, group="tp", label="TP::all_reduce (0+2)")]
        devices.append(rank(number, calls))
    matches = match(devices)
    found = buckets(matches, {"ddp": DDP})

    assert found is not None
    labels = [what.label for what in matches.collectives]
    assert [0, 0, 1, 1, 2, 2] == sorted(found.bucket[[not label for label in labels]].tolist())
    assert [-1] == [b for b, label in zip(found.bucket.tolist(), labels, strict=True) if label]
    assert () == found.notes


def test_other_sizes_than_ddps_are_reported() -> None:
    """A compression hook halves the sizes."""
    found = buckets(reduced(50, 150, 50), {"ddp": DDP})

    assert found is not None
    assert {-1} == set(found.bucket.tolist())
    assert "buckets of 100, 300, 100 bytes" in found.notes[0]
    assert "ProfilerStep#0" in found.notes[0]


@pytest.mark.parametrize("info", [{}, {"ddp": None}, {"ddp": {"rebuilt_bucket_sizes": ""}}, {"ranks": 5}])
def test_without_logging_data_there_are_none(info: dict[str, Any]) -> None:
    """Traces not recorded with dptrace, or trainers without DDP."""
    assert buckets(reduced(100), info) is None
    assert [""] == instance_names(reduced(100), None)


def test_damaged_logging_data_names_no_bucket() -> None:
    """Malformed numbers are ignored, and so are parameters that do not match the sizes."""
    found = buckets(
        reduced(100), {"ddp": {"rebuilt_bucket_sizes": "100, x", "rebuilt_per_bucket_param_indices": "1, 2"}}
    )

    assert found is not None
    assert (Bucket(0, 100, ()),) == found.buckets


def test_labels_of_the_trainer_are_names() -> None:
    """FSDP's units by module, pipelines' actions by stage and micro-batch."""
    what = Collective("all_gather", 8, "Float", "0", label="FSDP::all_gather (layers.3)")

    assert ["FSDP::all_gather (layers.3)"] == instance_names(match([rank(0, [(0, 0, 9, what)])]), None)


@pytest.mark.parametrize("name", ["ddp_cpu_2ranks", "ddp_4mb_cpu_2ranks"])
def test_measured_bytes_are_those_that_ddp_shows(name: str) -> None:
    """In the repository's recordings, every all-reduce of each step is a bucket with the bytes that DDP logged."""
    run = dptrace.open(str(RUNS / name))
    matches = match(run.devices, run.world_size)

    found = buckets(matches, run.metadata)

    assert found is not None
    logged = json.loads((RUNS / name / "run.json").read_text())["ddp"]
    sizes = [int(size) for size in logged["rebuilt_bucket_sizes"].split(",")]
    assert () == found.notes
    assert sizes * len(run.timelines[0].windows) == matches.bytes.tolist()
    assert list(range(len(sizes))) * len(run.timelines[0].windows) == found.bucket.tolist()
    parameters = [index for bucket in found.buckets for index in bucket.parameters]
    assert sorted(parameters) == list(range(logged["num_parameter_tensors"]))
