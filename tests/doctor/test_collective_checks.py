"""Checks of what ranks do together, on recordings from which something is missing or whose clocks are off."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

import dptrace
from dptrace.doctor.collective_checks import (
    check_clocks,
    check_collectives,
    check_launch_clock,
    check_matching,
    check_metadata,
)
from dptrace.doctor.verdict import RecordedRun
from dptrace.timeline.model import Timeline, Windows
from tests.support.real_traces import needs_real_traces, real
from tests.support.selftests import bare, gpu_timelines, recorded


def shifted(timeline: Timeline, by_ns: int) -> Timeline:
    """Return a timeline on a clock that is ahead."""
    bounds = Windows(timeline.windows.names, timeline.windows.bounds + by_ns)
    return replace(
        timeline,
        start_ns=timeline.start_ns + by_ns,
        end_ns=timeline.end_ns + by_ns,
        launch_ns=timeline.launch_ns + by_ns,
        windows=bounds,
    )


def test_a_healthy_recording_passes() -> None:
    """Every check of two GPUs' whole traces is content."""
    checks = (check_collectives, check_metadata, check_matching, check_clocks, check_launch_clock)

    assert ["ok"] * len(checks) == [check(recorded()).level for check in checks]


def test_missing_collectives_name_the_rank() -> None:
    """A rank that shows no communication is wrong; on CPU the advice is about gloo."""
    first, second = gpu_timelines()
    alone = replace(second.filter(second.collective < 0), collectives=())
    on_cpu = tuple(replace(timeline, device=-1) for timeline in (first, alone))

    gpu, cpu = check_collectives(recorded((first, alone))), check_collectives(recorded(on_cpu, on_gpus=False))

    assert ["wrong", "wrong"] == [gpu.level, cpu.level]
    assert "rank 1 shows no collective" in gpu.why
    assert "NCCL" in gpu.why
    assert "gloo" in cpu.why


def test_missing_metadata_is_wrong_everywhere_and_a_warning_in_part() -> None:
    """Without any message size the torch is too old; some collectives without one are a warning."""
    first, second = gpu_timelines()
    none = check_metadata(
        recorded(tuple(bare(timeline, bytes=0, group_size=0, ranks=()) for timeline in (first, second)))
    )
    some = check_metadata(recorded((first, bare(second, bytes=0))))

    assert ["wrong", "warning"] == [none.level, some.level]
    assert "message sizes of 6 of 6" in none.why
    assert "process groups" in none.why
    assert "record_param_comms" in none.why
    assert "message sizes of 3 of 6" in some.why
    assert "process groups" not in some.why


def test_gloo_needs_no_group() -> None:
    """On CPU the trace never tells groups, so that only sizes count."""
    timelines = tuple(replace(bare(timeline, group_size=0, ranks=()), device=-1) for timeline in gpu_timelines())

    assert "ok" == check_metadata(recorded(timelines, on_gpus=False)).level


def test_collectives_without_a_partner_are_found() -> None:
    """If the ranks show different collectives, nothing matches."""
    first, second = gpu_timelines()
    alone = replace(second.filter(second.collective < 0), collectives=())

    assert "wrong" == check_matching(recorded((first, alone))).level


def test_clocks_far_apart_are_wrong() -> None:
    """Two processes of one machine whose clocks differ by 5 ms cannot be right; 50 µs can."""
    first, second = gpu_timelines()
    far, near = (check_clocks(recorded((first, shifted(second, by_ns)))) for by_ns in (5_000_000, 50_000))

    assert ["wrong", "ok"] == [far.level, near.level]
    assert "5.00 ms" in far.why


def test_clocks_that_nothing_connects_are_wrong() -> None:
    """Without a common collective the offset is unknown."""
    first, second = gpu_timelines()
    alone = replace(second.filter(second.collective < 0), collectives=())

    verdict = check_clocks(recorded((first, alone)))

    assert "wrong" == verdict.level
    assert "rank 1" in verdict.why


def test_kernels_before_their_launch_are_found() -> None:
    """Kernels 40 µs before their launch are a warning, 3 ms before it wrong: the GPU's clock is not the CPU's."""
    first, second = gpu_timelines()
    little, much = (
        check_launch_clock(recorded((first, replace(second, launch_ns=second.start_ns + by_ns))))
        for by_ns in (40_000, 3_000_000)
    )

    assert ["warning", "wrong"] == [little.level, much.level]
    assert "rank 1" in little.why
    assert "40.0 µs" in little.why
    assert "ok" == check_launch_clock(recorded((first, replace(second, launch_ns=np.full(len(second), -1))))).level


@pytest.mark.heavy
@needs_real_traces
def test_eight_h100_pass_but_for_their_first_collectives() -> None:
    """A real job's clocks fit; its recording began amid collectives whose metadata are not in the files."""
    run = dptrace.open(real("sharded_h100_8ranks"), cache=False)
    whole = RecordedRun(run, ranks=8, steps=3, on_gpus=True)
    checks = (check_collectives, check_metadata, check_clocks, check_launch_clock)

    assert ["ok", "warning", "ok", "ok"] == [check(whole).level for check in checks]


@pytest.mark.heavy
@needs_real_traces
def test_an_old_torch_lacks_metadata_and_exact_clocks() -> None:
    """Four V100 with a torch of 2023: no metadata at all, and kernels that start before their launch."""
    run = dptrace.open(real("dlrm_v100_4ranks"), cache=False)
    old = RecordedRun(run, ranks=4, steps=3, on_gpus=True)

    assert "wrong" == check_metadata(old).level
    assert "warning" == check_launch_clock(old).level
    assert "ok" == check_clocks(old).level
