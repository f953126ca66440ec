"""Small inputs that lack something: what comes out, and what is said; they are not in the repository."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

import dptrace
from dptrace.core.notes import DEVICE, LAUNCHES, MARKS, RECORDS
from dptrace.errors import DptraceError, TraceError
from dptrace.replay.findings import findings_of
from dptrace.run.cross_rank import mean_step
from tests.support.paths import ROOT

FILES = ROOT.parent / "shared" / "inputs" / "files"

pytestmark = pytest.mark.skipif(not FILES.exists(), reason=f"the inputs are not here ({FILES})")


def opened(name: str) -> tuple[dptrace.Run, dict[str, Any]]:
    run = dptrace.open(FILES / name)
    found = mean_step(run.cross_rank)
    assert found is not None
    return run, found.to_dict()


@pytest.mark.heavy
def test_a_step_takes_what_it_takes_and_what_is_missing_is_named() -> None:
    """Of nc_one_rank_nosteps, the rank without marks is not in the mean."""
    for name, wall_ms, lacks in (
        ("nc_no_runtime", 2.03, {LAUNCHES}),
        ("c08_no_runtime_events.json", 10.0, {LAUNCHES}),
        ("nc_args_stripped_traceback", 1.16, {LAUNCHES}),
        ("nc_corr_same", 2.03, {LAUNCHES}),
        ("b08_kernels_dropped.json", 10.0, {RECORDS}),
        ("b02_ts0.json", 10.0, {RECORDS}),
        ("b02b_ts0_relative.json", 10.0, {RECORDS}),
        ("b01b_corrupt_dur_last.json", 10.0, {RECORDS}),
        ("b01a_corrupt_dur_many.json", 10.0, set()),
        ("b23_step_zero_length.json", 10.0, set()),
        ("b23b_all_steps_zero_length.json", 10.0, set()),
        ("c10_two_profilers_recorded.json", 235.07, set()),
        ("c01_two_profilers_other_numbers.json", 10.0, set()),
        ("nc_step_nest", 2.03, set()),
        ("b42_two_step_counters.json", 10.0, set()),
        ("b42b_nested_duplicate_steps.json", 10.0, set()),
        ("b17_validation_steps.json", 10.0, set()),
        ("b04_sync.json", 10.0, set()),
        ("x01_xpu_runtime.json", 10.0, set()),
        ("nc_group_size_2e31", 2.03, set()),
        ("x03_mtia.json", 10.0, {DEVICE}),
        ("ascend_trace_view.json.gz", 14.09, {DEVICE}),
        ("nc_one_rank_nosteps", 2.03, {MARKS}),
    ):
        run, step = opened(name)
        assert wall_ms == pytest.approx(step["wall_ns"] / 1e6, rel=0.005), name
        assert lacks == {premise for timeline in run.timelines for premise in timeline.lacks}, name


@pytest.mark.heavy
def test_two_processes_in_one_file_are_two_ranks() -> None:
    """Each has its own forward, collectives, and exposed communication."""
    for name in ("b12_sglang_merged_dev0.json", "b12b_sglang_merged_dev01.json", "b12c_two_processes_one_file.json"):
        run, _ = opened(name)
        means = [split.mean() for split in run.splits]
        assert (0, 1) == run.ranks
        assert [1.5, 3.0] == [pytest.approx((mean["forward_ns"] or 0) / 1e6) for mean in means]
        assert [0, 0] == [mean["overlapped_comm_ns"] for mean in means]
        assert [3, 3] == [int(split.comm["all_reduce"].count.sum()) / len(split.names) for split in run.splits]
        assert [9, 9] == [len(timeline.collectives) for timeline in run.timelines]
        assert not any("no trace was read" in note or "Rank 0 waits for rank 0" in note for note in run.notes)


def test_what_is_no_trace_of_a_rank_is_refused() -> None:
    """The sentence says what it is."""
    for name, words in (("b14_interleaved.json", "two headers"), ("b22_legacy_list.json", "torch.autograd.profiler")):
        with pytest.raises(TraceError, match=words):
            dptrace.open(FILES / name)


@pytest.mark.parametrize(
    ("name", "launching_ms"),
    [("r01_slow_launch_call_hip.json", 108.0), ("hta_simple_add.json.gz", 4_221), ("tl_normalization.json.gz", 979)],
)
def test_a_host_that_blocks_in_a_launch_is_the_cause(name: str, launching_ms: float) -> None:
    """No other stream is."""
    run, _ = opened(name)
    causes = run.idle_causes().sum(numeric_only=True)

    assert launching_ms == pytest.approx(causes["launching_ns"] / 1e6, rel=0.01)
    assert 0 == causes["waiting_ns"]


@pytest.mark.parametrize(
    ("name", "least_ms"),
    [("nostep_s15000.json", 20.0), ("cloverleaf.sqlite", 303.8), ("s01_pause_before_first_step.json", 5.1)],
)
def test_no_prediction_is_below_the_devices_work(name: str, least_ms: float) -> None:
    """Whatever a host without delays launches before the first step."""
    assert round(dptrace.open(FILES / name).whatif(no_host_delay=True).predicted_step_ns / 1e6, 1) >= least_ms


def test_of_a_damaged_recording_no_change_is_predicted() -> None:
    """A collective of it can't be placed."""
    with pytest.raises(DptraceError, match="records of work were lost"):
        dptrace.open(FILES / "nc_whatif_longer").whatif(bandwidth="2x")


@pytest.mark.slow
def test_no_gain_or_cost_exceeds_a_step() -> None:
    """Of each input that is read."""
    for path in sorted(FILES.iterdir()):
        with suppress(TraceError):
            findings = findings_of(dptrace.open(path))
            gains = [finding.gain.share for finding in findings if finding.gain and finding.gain.share is not None]
            assert [] == [share for share in gains if share > 1], path.name
            assert all(0 <= finding.share <= 1 for finding in findings), path.name


def test_words_are_those_of_the_case() -> None:
    """One group under two names, and batched messages."""
    assert any(
        "name one process group differently" in note for note in opened("b18b_pgname_differs")[0].cross_rank.notes
    )
    kinds = {kind for split in opened("b26_batched_p2p")[0].splits for kind in split.comm}
    assert {"all_reduce", "send_recv"} == kinds
