"""run.json."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from dptrace.record.run_folder.manifest import (
    add_overhead,
    launch_metadata,
    manifest,
    overhead,
    overhead_figures,
    write_manifest,
)
from tests.support.recordings import recorded

DOCUMENTED = Path(__file__).parents[3] / "docs" / "reference" / "run-folder.md"


def _piece(rank: int, **values: Any) -> dict[str, Any]:
    run_keys = ("model", "parameters", "options", "schedule", "backend", "versions", "ddp")
    rank_keys = ("node", "local_rank", "host", "device", "threads", "file", "recorded_steps", "memory")
    piece = dict.fromkeys((*run_keys, *rank_keys)) | {"world_size": 2, "losses": [], "notes": []}
    return piece | {"rank": rank, "unprofiled_ns": [], "profiled_ns": [], "overhead_windows": []} | values


COMPLETE = launch_metadata(["dptrace"], "naive", None, None)


def test_losses_are_averaged_over_ranks() -> None:
    """A rank's loss is that of its shard; a loss that is not finite becomes null."""
    pieces = [_piece(0, losses=[1.0, 2.0, float("nan"), None]), _piece(1, losses=[3.0, 2.5, 1.0, 1.0])]

    assert [2.0, 2.25, None, None] == manifest(pieces, COMPLETE)["losses"]


def test_the_overhead_is_reported_from_medians() -> None:
    """One slow step does not affect the overhead; without both times it is unknown."""
    ranks = [
        {"unprofiled_ns": [100, 100, 900], "profiled_ns": [110, 110, 110]},
        {"unprofiled_ns": [100, 100, 100], "profiled_ns": [130, 130, 9000]},
    ]

    assert 0.2 == overhead(ranks)
    assert overhead([{"unprofiled_ns": [], "profiled_ns": [1]}]) is None


def test_the_overhead_is_that_of_alternating_windows() -> None:
    """A drift of the machine affects windows of both kinds; the recorded steps, at another time, do not count."""
    times = ((False, [100, 100]), (True, [121, 121, 900]), (False, [120, 120]), (True, [121]))
    windows = [{"profiled": profiled, "step_ns": ns} for profiled, ns in times]

    assert 0.1 == overhead([{"overhead_windows": windows, "unprofiled_ns": [1], "profiled_ns": [500]}])


@pytest.mark.parametrize(
    ("steps_ns", "told"),
    [
        ((4, 9, 4, 5, 4), None),
        ((4, 6, 9, 6, 4), None),
        ((40, 43, 40, 42, 41), 0.0537),
        ((4, 9, 4, 8, 4), 1.125),
    ],
    ids=["apart", "without it", "steady", "large"],
)
def test_an_overhead_is_told_only_where_windows_agree(steps_ns: tuple[int, ...], told: float | None) -> None:
    """On a busy machine wall times tell nothing, and the processor time still does."""
    windows = [
        {"profiled": bool(number % 2), "step_ns": [ns], "cpu_ns": [209 if number % 2 else 200]}
        for number, ns in enumerate(steps_ns)
    ]
    figures = overhead_figures([{"overhead_windows": windows, "unprofiled_ns": [1], "profiled_ns": []}])

    assert (told, 0.045) == (figures["profiler_overhead"], figures["profiler_cpu_overhead"])
    low, high = figures["profiler_overhead_range"]
    assert (told is None) == (high - low > max(0.1, told or 0.0))


def test_an_overhead_measured_later_is_added(tmp_path: Path) -> None:
    """The run keeps all else; a rank without times of its own is left as it is."""
    (tmp_path / "rank0.piece.json").write_text(json.dumps(_piece(0, file="a")))
    (tmp_path / "rank1.piece.json").write_text(json.dumps(_piece(1, file="b")))
    before = write_manifest(tmp_path, COMPLETE)
    windows = [{"profiled": False, "step_ns": [100]}, {"profiled": True, "step_ns": [150]}]
    add_overhead(tmp_path, [{"rank": 1, "unprofiled_ns": [100], "overhead_windows": windows}])

    after = json.loads((tmp_path / "run.json").read_text())
    assert (None, 0.5) == (before["profiler_overhead"], after["profiler_overhead"])
    assert [[], windows] == [rank["overhead_windows"] for rank in after["ranks"]]
    assert before["ranks"][0] == after["ranks"][0]


def test_ranks_that_lie_on_other_machines_are_reported() -> None:
    """A folder with some of the ranks has a note; a failed run needs none."""
    (note,) = manifest([_piece(0) | {"schedule": {"steps": 1}}], COMPLETE)["notes"]
    assert "1 of 2 ranks are here; " in note
    assert "dptrace analyze" in note
    failed = launch_metadata(["dptrace"], "naive", None, {"rank": 1, "message": "killed"})
    assert [] == manifest([_piece(0)], failed)["notes"]
    assert "failed" == manifest([], failed)["status"]
    assert manifest([], failed)["world_size"] is None


def test_ranks_that_the_script_did_not_profile_are_reported() -> None:
    """Their traces do not exist, so the note does not ask for them."""
    (note,) = manifest([_piece(1) | {"schedule": None}], COMPLETE)["notes"]

    assert "1 rank of 2 (1)" in note
    assert "copy" not in note


def test_ranks_with_fewer_steps_than_others_are_reported() -> None:
    """The script of one rank may have started its own profiler."""
    (note,) = manifest([_piece(0, recorded_steps=1), _piece(1, recorded_steps=5)], COMPLETE)["notes"]

    assert "1 to 5" in note


def test_repeated_restarts_are_counted() -> None:
    """Two failures of one rank for one reason are one note that counts them; another rank's has its own."""
    killed, lost = {"rank": 1, "message": "killed by SIGKILL"}, {"rank": None, "message": "unknown"}

    notes = manifest([], COMPLETE | {"restarts": [killed, lost, killed]} | {"status": "failed"})["notes"]

    assert 2 == len(notes)
    assert "Rank 1 failed 2 times (killed by SIGKILL)" in notes[0]
    assert "A rank failed (unknown)" in notes[1]


def _described(heading: str, until: str) -> set[str]:
    text = DOCUMENTED.read_text(encoding="utf-8")
    part = text[text.index(heading) : text.index(until)]
    return set(re.findall(r"^\| `(\w+)` \|", part, flags=re.MULTILINE))


@pytest.mark.spawn
@pytest.mark.parametrize(("mode", "ranks"), [("single", 1), ("ddp", 2)])
def test_run_json_is_as_documented(mode: str, ranks: int) -> None:
    """Its keys are those in docs/reference/run-folder.md, and its values are those of this run."""
    info = json.loads((recorded(mode, ranks) / "run.json").read_text())

    assert _described("## run.json", "### Each rank") == set(info)
    assert (1, "complete", None, mode, None) == tuple(
        info[key] for key in ("schema", "status", "failure", "mode", "script")
    )
    assert ("small", 1_462_538, ranks, 1, "gloo") == tuple(
        info[key] for key in ("model", "parameters", "world_size", "nnodes", "backend")
    )
    assert {"dptrace", "torch", "python", "cuda", "nccl"} == set(info["versions"])
    assert {"wait": 4, "warmup": 2, "steps": 2} == info["schedule"]
    assert [] == info["notes"]
    assert list(range(ranks)) == [rank["rank"] for rank in info["ranks"]]
    for rank in info["ranks"]:
        assert _described("### Each rank", "### Memory") == set(rank)
        assert ("CPU", 2, 2, 2) == (
            rank["device"], rank["recorded_steps"], len(rank["unprofiled_ns"]), len(rank["profiled_ns"])
        )  # fmt: skip
        assert all(0 < wall < 60e9 for wall in rank["unprofiled_ns"] + rank["profiled_ns"])
        assert rank["threads"] >= 1


@pytest.mark.spawn
def test_ddp_shows_its_buckets() -> None:
    """DDP's own logging data contains the buckets; other modes have none."""
    info = json.loads((recorded("ddp", 2) / "run.json").read_text())

    assert 1_462_538 * 4 == sum(map(int, info["ddp"]["rebuilt_bucket_sizes"].split(", ")))
    assert json.loads((recorded("naive", 2) / "run.json").read_text())["ddp"] is None
