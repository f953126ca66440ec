"""The findings of a run."""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
import pytest
from msgspec.structs import force_setattr, replace

import dptrace
from dptrace.analysis.findings.detect import detected
from dptrace.analysis.findings.finding import Finding, FindingContext
from dptrace.analysis.findings.stragglers import measured_waiting
from dptrace.analysis.per_gpu.device import DeviceFigures, figures_of
from dptrace.replay.findings import findings_of as replayed
from dptrace.run.cross_rank import analyze_cross_rank
from dptrace.run.run import Run
from dptrace.timeline.model import Collective, Phase, Timeline
from tests.analysis.cross_rank.test_pipeline_bubble import gpipe, one_forward_one_backward, run_of
from tests.support.builders import TimelineBuilder
from tests.support.rank_cases import rank, reduce
from tests.support.real_traces import needs_real_traces, real

MS = 1_000_000


def findings_in(devices: list[DeviceFigures], world: int, info: Mapping[str, object]) -> tuple[Finding, ...]:
    return detected(analyze_cross_rank(devices, world, info), info)


def detected_in(*timelines: Timeline) -> tuple[Finding, ...]:
    return findings_in([figures_of(timeline) for timeline in timelines], len(timelines), {})


def step(rank: int = 0, **kinds: tuple[int, int]) -> TimelineBuilder:
    """Build a step of 100 ms of compute, except for the named parts."""
    build = TimelineBuilder(rank, bounds=(0, 100 * MS))
    edges = sorted(kinds.items(), key=lambda item: item[1])
    at = 0
    for name, (start, end) in edges:
        build.compute(at * MS, start * MS, Phase.BACKWARD)
        if name != "gap":
            getattr(build, name)(start * MS, end * MS)
        at = end
    return build.compute(at * MS, 100 * MS, Phase.OPTIMIZER) if at < 100 else build


def test_nothing_is_said_when_nothing_is_wrong() -> None:
    """No finding for a GPU that always computes, for a run without steps, or for a cost below one percent."""
    assert () == detected_in(step().build(), step(1).build())
    assert () == detected_in()
    assert () == detected_in(TimelineBuilder(bounds=(5, 5)).compute(5, 5).build())


def test_exposed_communication_is_reported_with_its_tail() -> None:
    """An all-reduce after backward costs its time; the advice is to start earlier, the evidence a step and rank."""
    (finding,) = detected_in(step(0, all_reduce=(60, 90)).build(), step(1, all_reduce=(60, 90)).build())

    assert ("exposed_comm", 30 * MS) == (finding.kind, finding.counted_ns)
    assert finding.share == pytest.approx(0.3)
    assert "100 % of it after the last backward kernel" in finding.text
    assert finding.text.startswith("all_reduce: ")
    assert "during backward" in finding.advice
    assert ("ProfilerStep#0", 30 * MS) == (finding.evidence.step, finding.evidence.to_dict()["exposed_ns"])


def test_overlap_is_not_advised_where_backward_is_far_too_short() -> None:
    """A transfer that takes more than twice as long as backward's compute can't hide behind it."""
    for backward, said in ((20, "at most 20.0 ms"), (50, "during backward")):
        pair = (step(rank, all_reduce=(backward, backward + 45)).build() for rank in (0, 1))
        (finding,) = detected_in(*pair)
        assert ("exposed_comm", 45 * MS) == (finding.kind, finding.counted_ns)
        assert said in finding.advice
        assert ("GB/s" in finding.advice) == (backward == 20)


def test_waiting_for_a_late_rank_is_said_without_a_cause() -> None:
    """With the ranks, how late, and where; the transfer alone is the collective's."""
    late = [figures_of(step(rank, all_reduce=(begin, 90)).build()) for rank, begin in enumerate((60, 85))]
    across = analyze_cross_rank(late, 2, {})
    (finding,), (exposed,) = measured_waiting(FindingContext(across)), detected(across)

    assert (12.5 * MS, 5 * MS) == (finding.counted_ns, exposed.counted_ns)
    assert finding.text == "Rank 0 waits for rank 1: up to 25.0 ms late at an all_reduce in ProfilerStep#0."
    expected = {"rank": 1, "step": "ProfilerStep#0", "cause": "unknown", "collective": "all_reduce"}
    assert {**expected, "waiting_ranks": [0]}.items() <= finding.evidence.to_dict().items()


def test_gradients_that_go_one_by_one_are_reported() -> None:
    """Many small all-reduces in a step: the advice is buckets."""
    build = step(0, gap=(50, 98))
    for k in range(40):
        build.all_reduce((50 + k) * MS, (51 + k) * MS, bytes=40_000)
    finding = next(finding for finding in detected_in(build.build()) if finding.kind == "exposed_comm")

    assert "40 per step, 40.0 kB on average" in finding.text
    assert "bucket" in finding.advice


def test_idle_time_is_reported_by_cause() -> None:
    """A gap of 20 ms on one of two ranks costs 10 ms on the mean GPU, and the worse rank is named."""
    for kind, launch, seen, counted_ms in (
        ("host_bound", 60, "", 10),
        ("data_loading", 60, "data_loading", 7.5),
        ("launching", 1, "launching", 10),
        ("waiting", 1, "depending", 10),
    ):
        gap = replace(step(0, gap=(40, 60)).build(), launch_ns=np.array([0, launch * MS]))
        if seen:
            gap = replace(gap, **{seen: (np.array([(45 if kind == "data_loading" else 40) * MS]), np.array([60 * MS]))})
        found = {finding.kind: finding for finding in detected_in(gap, step(1).build())}
        assert counted_ms * MS == found[kind].counted_ns
        assert "most on rank 0" in found[kind].text
        assert "ProfilerStep#0" == found[kind].evidence.step


def test_idle_time_that_nothing_explains_is_no_finding() -> None:
    """There is nothing to advise, and nothing that a step would gain."""
    gap = replace(step(0, gap=(40, 60)).build(), launch_ns=np.array([0, 1 * MS]))

    assert 20 * MS == figures_of(gap).idle_causes["unexplained_ns"].sum()
    assert () == detected_in(gap, step(1).build())


def test_a_compiled_model_is_not_to_be_compiled() -> None:
    """Late launches of a model that torch.compile has compiled already need CUDA graphs."""
    for name in ("gemm", "triton_poi_fused_gelu_0"):
        build = TimelineBuilder(bounds=(0, MS)).compute(0, 400_000, name=name).compute(600_000, MS)
        (finding,) = detected_in(replace(build.build(), launch_ns=np.array([0, 600_000])))
        assert "host_bound" == finding.kind
        assert ("torch.compile" in finding.advice) == (name == "gemm")
        assert "CUDA graphs" in finding.advice


def test_what_steps_without_the_profiler_leave_to_gain_is_said() -> None:
    """The GPU is busy 80 of 100 ms: where a step takes 88 ms without the profiler, at most 8 of the 20 are left."""
    for plain, gain, said in ((88, 8, "at most 8.00 ms"), (70, 0, "all idle time"), (98, None, ""), ("x", None, "")):
        gap = replace(step(0, gap=(40, 60)).build(), launch_ns=np.array([0, 60 * MS]))
        timed = [plain] if isinstance(plain, str) else [plain * MS, 500 * MS, 1 * MS]
        (finding,) = findings_in(
            [figures_of(gap)], 1, {"profiler_overhead": None, "ranks": [{"unprofiled_ns": timed}, 5]}
        )
        assert ("host_bound", 20 * MS) == (finding.kind, finding.counted_ns)
        assert finding.evidence.to_dict().get("unprofiled_gain_ns") == (None if gain is None else gain * MS)
        assert said in finding.text
        assert ("Without the profiler" in finding.text) == bool(said)


def test_pinned_memory_is_advised_only_where_most_copies_lack_it() -> None:
    """Copies that compute hides do not count, the others' exposed time does."""
    for source, other in (("Pageable", "Pinned"), ("Pinned", "Pageable")):
        build = step(0, gap=(10, 20)).memory(10 * MS, 20 * MS, f"Memcpy HtoD ({source} -> Device)")
        (finding,) = detected_in(build.memory(20 * MS, 90 * MS, f"Memcpy DtoH (Device -> {other})").build())
        assert ("copies", 10 * MS) == (finding.kind, finding.counted_ns)
        assert {"kind", "text", "advice", "counted_ns", "evidence"} <= set(finding.to_dict())
        assert ("Copy from pinned memory" in finding.advice) == (source == "Pageable")


def test_forward_work_done_again_is_reported_with_its_share() -> None:
    """The cost of recompute is its time on the GPU; overlapping parts count once."""
    timeline = step(0).build()
    again = step(0).compute(10 * MS, 30 * MS, Phase.BACKWARD).compute(20 * MS, 40 * MS, Phase.BACKWARD).build()
    again = replace(again, recompute=again.start_ns > 0)
    (finding,) = detected_in(again, replace(timeline, rank=1))

    assert ("recompute", 15 * MS) == (finding.kind, finding.counted_ns)
    assert finding.share == pytest.approx(0.15)
    assert ("ProfilerStep#0", 0, 30 * MS) == tuple(finding.evidence.to_dict()[key] for key in ("step", "rank", "ns"))
    assert "activation checkpointing" in finding.text


def test_a_search_for_unused_parameters_costs_where_the_gpu_idles() -> None:
    """Of 20 ms of search 15 are in a gap; if DDP's data says that all were used, so does the finding."""
    search = (np.array([45 * MS]), np.array([65 * MS]))
    gap = replace(step(0, gap=(40, 60)).build(), parameter_search=search, launch_ns=np.array([0, 60 * MS]))
    for used, said in ((0, "all parameters were used"), (400, "only time in which")):
        info = {"ddp": {"find_unused_parameters": 1, "unused_parameter_size": used}}
        (found,) = (one for one in findings_in([figures_of(gap)], 1, info) if one.kind == "unused_parameters")
        assert (15 * MS, 20 * MS) == (found.counted_ns, found.evidence.to_dict()["host_ns"])
        assert said in found.text
        assert "20.0 ms of each host's step" in found.text


def test_a_search_that_gpu_work_hides_is_not_reported() -> None:
    """A search during kernels costs nothing; on a CPU it always costs time."""
    searching = (np.array([45 * MS]), np.array([65 * MS]))
    busy = replace(step(0).build(), parameter_search=searching)

    assert () == detected_in(busy)
    assert "unused_parameters" == detected_in(replace(busy, device=-1))[0].kind


def job(
    *sizes: int, alpha: int = MS, per_byte: float = 1.0, ranks: tuple[int, ...] = (0, 1), world: int = 2
) -> list[DeviceFigures]:
    """Build exposed all-reduces of these sizes, one after the other, that take alpha + size × per_byte ns."""
    calls, at = [], 0
    for size in sizes:
        length = int(alpha + size * per_byte)
        at += length
        calls.append(reduce(0, at, size, length, ranks=tuple(range(world)), group_size=world))
    return [rank(number, calls, ("ProfilerStep#0",)) for number in ranks]


def kinds(devices: list[DeviceFigures], world: int = 2, **info: object) -> dict[str, Finding]:
    return {finding.kind: finding for finding in findings_in(devices, world, info)}


def test_messages_below_the_crossover_are_reported() -> None:
    """Ten of 10 kB pay a latency of 1 ms each, as long as the transfer of 1 MB: nine could be saved."""
    found = kinds(job(*[10_000] * 10, 8_000_000, 16_000_000))["small_messages"]

    assert found.counted_ns == pytest.approx(9 * MS, rel=0.01)
    assert "10 all_reduce per step (10.0 kB on average) are smaller than 1.0 MB" in found.text
    assert (10, "ProfilerStep#0") == (found.evidence.to_dict()["count"], found.evidence.step)
    assert "small_messages" not in kinds(job(4_000_000, 8_000_000, 16_000_000))
    assert "small_messages" not in kinds(job(10_000, 8_000_000, 16_000_000))


def test_bandwidth_is_reported_against_what_the_links_were_measured_at() -> None:
    """1 byte per ns between two ranks is 1 GB/s: 40 % of links of 2.5 GB/s, and enough for links of 1.2 GB/s."""
    devices = job(*[32_000_000] * 3, alpha=0)
    found = kinds(devices, links={"busbw_gbps": 2.5})["low_bandwidth"]

    assert "reaches 40 % of the 2.5 GB/s measured" in found.text
    assert found.counted_ns == pytest.approx(0.6 * 96 * MS, rel=0.01)
    assert "low_bandwidth" not in kinds(devices, links={"busbw_gbps": 1.2})
    apart = [{"rank": number, "node": number} for number in (0, 1)]
    assert "low_bandwidth" not in kinds(devices, links={"busbw_gbps": 2.5}, ranks=apart)
    for unknown in (None, {}, {"busbw_gbps": None}, {"busbw_gbps": "fast"}):
        assert "low_bandwidth" not in kinds(devices, links=unknown)


def test_without_measured_links_groups_are_compared() -> None:
    """Of two pairs of ranks with similar messages, one reaches a quarter of the other's bandwidth."""
    for slower in (4, 1):
        devices = []
        for number in range(4):
            pair, length = number // 2, 32 * MS * (slower if number > 1 else 1)
            about = {"group": str(pair), "ranks": (2 * pair, 2 * pair + 1), "group_size": 2}
            calls = [reduce(0, (k + 1) * length, 32_000_000, length, **about) for k in range(3)]
            devices.append(rank(number, calls, ("ProfilerStep#0",)))
        found = kinds(devices, 4)
        assert (slower == 4) == ("low_bandwidth" in found)
        assert slower == 1 or "among ranks 2, 3 reaches 0.2 GB/s, 25 %" in found["low_bandwidth"].text


def test_a_collective_slower_than_its_like_is_reported() -> None:
    """One of ten took 60 ms, the others 10, after both ranks arrived."""
    ends = [10 * (k + 1) + (50 if k > 6 else 0) for k in range(10)]
    calls = [reduce(0, end * MS, 4_000, (60 if k == 7 else 10) * MS) for k, end in enumerate(ends)]
    found = kinds([rank(number, calls, ("ProfilerStep#0",)) for number in (0, 1)])["slow_collectives"]

    assert 50 * MS == found.counted_ns
    assert "1 of 10 collectives" in found.text
    assert "50.0 ms longer" in found.text


def test_a_large_first_bucket_sets_out_late() -> None:
    """It takes half of backward to fill, and later buckets queue behind it, 20 ms of them after backward."""
    build = TimelineBuilder(0, bounds=(0, 100 * MS)).compute(0, 60 * MS, Phase.BACKWARD)
    build.all_reduce(30 * MS, 80 * MS, bytes=90_000).all_reduce(80 * MS, 90 * MS, bytes=10_000)
    found = {finding.kind: finding for finding in detected_in(build.build())}

    assert 20 * MS == found["first_bucket"].counted_ns
    assert "50 % into backward: 90.0 kB, 90 % of all" in found["first_bucket"].text
    assert {"bytes": 10_000, "name": None, "step": "ProfilerStep#0"} == found["exposed_comm"].evidence.to_dict()["last"]
    mapped = build.all_reduce(90 * MS, 95 * MS, bytes=40)
    mapped.rows[-1] = (*mapped.rows[-1][:-1], Collective("all_reduce", 40, "int", "default_pg", 2))
    found = {finding.kind: finding for finding in detected_in(mapped.build())}
    assert 10_000 == found["exposed_comm"].evidence.to_dict()["last"]["bytes"]
    small = TimelineBuilder(0, bounds=(0, 100 * MS)).compute(0, 60 * MS, Phase.BACKWARD)
    small.all_reduce(5 * MS, 80 * MS, bytes=90_000).all_reduce(80 * MS, 90 * MS, bytes=10_000)
    assert "first_bucket" not in {finding.kind for finding in detected_in(small.build())}


def test_without_all_ranks_waiting_is_no_figure() -> None:
    """The finding names the missing ranks; with all ranks it says nothing."""
    for here, world, said in (
        ((0,), 2, "rank 1 was not recorded"),
        ((0, 2), 4, "ranks 1, 3 were not recorded"),
        ((0, 1), 2, ""),
    ):
        finding = kinds(job(8_000_000, ranks=here, world=world), world)["exposed_comm"]
        assert ("How much of it is waiting is unknown" in finding.text) == bool(said)
        assert said in finding.text
        assert ("missing traces first" in finding.advice) == bool(said)


def test_kinds_that_run_at_once_share_what_they_expose() -> None:
    """A send of 40 ms under a receive of 60: together they count the 60 ms of the step's exposed communication."""
    build = TimelineBuilder(0, bounds=(0, 100 * MS)).compute(0, 40 * MS)
    for kind, end, lane in (("send", 80, 20), ("recv", 100, 21)):
        build.collective(40 * MS, end * MS, Collective(kind, 64, "float", "", 2), lane=lane)
    figures = figures_of(build.build())
    found = [one for one in findings_in([figures], 2, {}) if one.kind == "exposed_comm"]

    assert 60 * MS == figures.split.figures["exposed_comm_ns"].sum() == sum(one.counted_ns for one in found)
    assert all("rank 1 was not recorded" in one.text for one in found)


@pytest.mark.slow
@needs_real_traces
def test_real_runs_name_what_costs_them_most() -> None:
    """The straggler of one run, the per-parameter all-reduces of another."""
    first = replayed(dptrace.open(real("straggler_v100_4ranks")))[0]
    kinds = replayed(dptrace.open(real("perparam_v100_rank1of2")))

    assert ("straggler", 2) == (first.kind, first.evidence.rank)
    assert any(finding.kind == "exposed_comm" and finding.share > 0.1 for finding in kinds)


def test_a_run_without_a_gpu_has_no_idle_gpus() -> None:
    """Gaps between operators are Python; advice for GPUs would mislead."""
    build = TimelineBuilder(0, -1, bounds=(0, 100 * MS)).compute(0, 10 * MS).compute(90 * MS, 100 * MS)

    assert () == detected_in(build.build())


def test_findings_of_a_run_without_a_gpu_name_none() -> None:
    """Waiting for a DataLoader, a search for unused parameters, and slow links cost a CPU, too."""
    spans = (np.array([40 * MS]), np.array([60 * MS]))
    waiting = replace(step(0, gap=(40, 60)).build(), device=-1, data_loading=spans, launch_ns=np.array([0, 59 * MS]))
    searching = replace(step(1).build(), device=-1, parameter_search=spans)
    slow = [replace(d, timeline=replace(d.timeline, device=-1)) for d in job(*[32_000_000] * 3, alpha=0)]
    found = {finding.kind: finding for finding in detected_in(waiting, searching)}
    found |= kinds(slow, links={"busbw_gbps": 2.5})

    assert {"data_loading", "unused_parameters", "low_bandwidth"} <= found.keys()
    for finding in found.values():
        assert not re.search("GPU|pin_memory|nvidia|NCCL|kernel", finding.text + finding.advice), finding.kind


# The cost of a pipeline's bubble.


def bubble_of(run: Run) -> Finding:
    return next(finding for finding in detected(run.cross_rank) if finding.kind == "bubble")


def test_the_bubble_is_reported_beside_the_schedules_own() -> None:
    """Filling the pipeline takes one of five parts of the time: the measured bubble equals the formula's."""
    finding = bubble_of(run_of(gpipe(2, 4), 100, 200))

    assert 300 == finding.counted_ns
    assert "20.0 % of its ranks' time; the gpipe schedule implies 20.0 %." in finding.text
    assert "micro-batches (now 4)" in finding.advice
    assert "interleave" in finding.advice
    facts = {"step": "ProfilerStep#0", "micro_batches": 4, "schedule": "gpipe"}
    assert facts.items() <= finding.evidence.to_dict().items()


def test_a_stage_that_takes_longer_is_named() -> None:
    """The others wait for it: the advice is to rebalance the layers."""
    for first in (0, 1):
        run = run_of(one_forward_one_backward(2, 4), 100, 200)
        slow = run.timelines[first].actions
        force_setattr(slow, "busy_ns", slow.busy_ns // 4)
        finding = bubble_of(run)
        assert f"The stages of rank {1 - first} compute 1.6 times as long as the mean." in finding.text
        assert finding.advice.startswith("Rebalance the layers")
