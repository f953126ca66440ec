"""Advice on a recording: what limits its step, and what findings, options and replays gain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dptrace
from dptrace.replay.advice import recorded_advice, recorded_questions, recorded_step
from dptrace.run.run import Run
from tests.support.mesh import Mesh
from tests.support.paths import TRACES
from tests.support.planted import Plant, planted_job
from tests.support.real_traces import needs_real_traces, real
from tests.support.replay_files import job_rank


@pytest.fixture(scope="module")
def content(run: Run) -> dict[str, Any]:
    """Rank 1 of two is late by 100 µs at an all-reduce of 100 µs, in a step of 800 µs."""
    return recorded_advice(run)


def items(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in content["checks"]}


def test_the_parts_are_those_of_the_step(content: dict[str, Any]) -> None:
    """800 µs: 600 or 700 of forward, backward and optimizer, 100 of transfer, and rank 0 waits for 100."""
    parts = content["parts"]

    assert 800_000 == content["step_ns"]
    assert 100_000 == parts["exposed_transfer_ns"]
    assert 50_000 == parts["exposed_wait_ns"]
    assert 600_000 == parts["compute_ns"]


def test_gains_of_what_ifs_are_those_of_the_replay(content: dict[str, Any]) -> None:
    """Links twice as fast save half of the transfer."""
    found = items(content)

    assert 50_000 == found["faster-links"]["gain_ns"]
    assert "whatif RUN --bandwidth 2x" in found["faster-links"]["computed"]


def test_what_a_finding_answers_is_no_item(content: dict[str, Any]) -> None:
    """The exposed transfer and the late rank are findings: no item has another figure for them."""
    assert {"exposed_comm", "straggler"} <= {one["kind"] for one in content["findings"]}
    assert not {"overlap", "straggler"} & {*items(content)}


@pytest.mark.heavy
def test_messages_gain_no_more_than_their_transfer(tmp_path: Path) -> None:
    """Of 5 ms of waiting for a late rank, no size of buckets and no link gives any back."""
    run = dptrace.open(planted_job(tmp_path, [Plant(1, "loader", 5)]), cache=False)
    content = recorded_advice(replace(run, metadata={"ddp": {"bucket_cap_bytes": 25 << 20}}))
    transfer_ns = content["parts"]["exposed_transfer_ns"]

    of_messages = [items(content)[name] for name in ("bucket-size", "faster-links")]
    assert all((one["gain_ns"] or 0) <= transfer_ns + content["step_ns"] // 100 for one in of_messages)


def test_what_applies_comes_first_by_gain(content: dict[str, Any]) -> None:
    """Items that gain a hundredth of the step or more, the largest first; then those that do not."""
    gains = [one["gain_ns"] or 0 for one in content["checks"] if one["applies"]]
    states = [one["status"] for one in content["checks"]]

    assert sorted(gains, reverse=True) == gains
    assert sorted(states, key=["apply", "keep", "skip"].index) == states
    assert all(one["gain_share"] >= 0.01 for one in content["checks"] if one["applies"] and one["gain_ns"])


def test_the_path_has_the_documents_goals(content: dict[str, Any]) -> None:
    """Overlap, efficiency, data and stragglers, each with its number and the goal."""
    path = {one["name"]: one for one in content["path"]}

    assert (0.0, 0.8, "no") == tuple(path["overlap"][key] for key in ("value", "limit", "answer"))
    assert "compute" == path["bound"]["answer"]
    assert "yes" == path["straggler"]["answer"]
    assert pytest.approx(1 - 0.1875 / 2) == path["efficiency"]["value"]


@pytest.mark.heavy
def test_options_of_ddp_are_items() -> None:
    """A recording of DDP says which options it used: the copy of the gradients takes their bytes."""
    found = items(dptrace.advise(dptrace.open(TRACES / "ddp_cpu_2ranks")))

    assert 33_728_552 == found["gradient_as_bucket_view"]["gain_bytes"]
    assert found["gradient_as_bucket_view"]["applies"]
    assert "keep" == found["find_unused_parameters"]["status"]
    assert "bucket-size" in found
    assert "skip" == found["broadcast_buffers"]["status"]


@pytest.mark.heavy
def test_naive_gains_from_fewer_all_reduces() -> None:
    """By replay, copies into DDP's buckets cost this job what their overlap gains; accumulating gains."""
    found = items(dptrace.advise(dptrace.open(TRACES / "naive_cpu_2ranks")))

    assert not found["ddp"]["applies"]
    assert found["accumulate"]["applies"]


def test_one_rank_has_no_communication() -> None:
    """Nothing is asked about links, buckets or ranks."""
    content = dptrace.advise(dptrace.open(TRACES / "single_cpu"))

    assert not {"overlap", "faster-links", "straggler", "efficiency"} & {*items(content)}
    assert 1 == content["ranks"]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("mode", "info", "hook"),
    [
        ("naive", {}, ""),
        ("tp", {}, ""),
        (None, {}, ""),
        ("ddp", {}, "no_sync"),
        (None, {"ddp": {"world_size": 2}}, "no_sync"),
        ("fsdp", {}, "set_requires_gradient_sync"),
    ],
)
def test_what_is_to_be_done_fits_how_the_job_trains(
    job: Path, mode: str | None, info: dict[str, Any], hook: str
) -> None:
    """Gradients are accumulated with no_sync under DDP alone; another way to train has no such call."""
    run = dptrace.open(job, cache=False)
    run = replace(run, metadata={"mode": mode, **info})
    found = items(recorded_advice(run))["accumulate"]["do"]

    assert hook in found
    assert ("no_sync" == hook) == ("no_sync" in found)


@pytest.mark.heavy
def test_a_compiled_job_is_to_use_graphs(tmp_path: Path) -> None:
    """It is compiled already: what frees its host is a graph, and the gain is the same."""
    for rank in (0, 1):
        job_rank(rank, 300, 523).write(tmp_path / f"rank{rank}.json")
    eager = recorded_advice(dptrace.open(tmp_path, cache=False))["findings"]
    for rank in (0, 1):
        path = tmp_path / f"rank{rank}.json"
        path.write_text(path.read_text().replace('"forward"', '"triton_poi_fused_add_0"'))
    compiled = recorded_advice(dptrace.open(tmp_path, cache=False))["findings"]
    host = [next(one for one in found if one["kind"] == "host_bound") for found in (eager, compiled)]

    assert ["torch.compile" in one["advice"] for one in host] == [True, False]
    assert "graphs" in host[1]["advice"]
    assert host[0]["gain_ns"] == host[1]["gain_ns"]


def test_a_run_without_steps_is_refused() -> None:
    """There is nothing to advise on."""
    with pytest.raises(dptrace.DptraceError, match="no steps"):
        recorded_advice(Run("empty", ()))


def test_a_run_and_a_description_are_two_questions(run: Run) -> None:
    """A run describes itself."""
    with pytest.raises(dptrace.UsageError, match="gpus"):
        dptrace.advise(run, gpus=8)


@needs_real_traces
@pytest.mark.heavy
def test_a_real_straggler_costs_most() -> None:
    """Four V100s of which one is late: that is the first finding."""
    content = dptrace.advise(dptrace.open(real("straggler_v100_4ranks")))
    path = {one["name"]: one for one in content["path"]}

    assert "yes" == path["straggler"]["answer"]
    assert "straggler" == content["findings"][0]["kind"]


@pytest.mark.heavy
def test_the_rank_that_others_wait_for_is_asked_for_its_data(tmp_path: Path) -> None:
    """Rank 5 waits 600 µs for data in each step, and all others for it: of the mean rank that is an eighth."""
    run = dptrace.open(Mesh(late_us={5: 600}).write(tmp_path / "run"), cache=False)

    questions = {question.name: question for question in recorded_questions(run, recorded_step(run))}

    assert questions["data"].answer.startswith("yes")
    assert "rank 5" in questions["data"].numbers


@pytest.mark.heavy
def test_without_a_rank_nothing_is_said_of_waiting(tmp_path: Path) -> None:
    """Rank 1 of two is late by 600 µs and was not recorded: what the other one's collectives take may be waiting."""
    folder = Mesh(tp=1, dp=2, late_us={1: 600}).write(tmp_path / "run")
    next(folder.glob("*rank1.*")).unlink()
    run = dptrace.open(folder, cache=False)
    content, answer = recorded_advice(run), run.whatif(bandwidth=2)

    assert [None, None] == [content["parts"][f"exposed_{part}_ns"] for part in ("wait", "transfer")]
    assert next(one for one in content["path"] if one["name"] == "straggler")["answer"].startswith("unknown")
    assert "at most" in items(content)["faster-links"]["reason"]
    assert answer.predicted_step_ns < answer.high_ns == answer.measured_step_ns
