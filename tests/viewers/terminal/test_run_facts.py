"""Facts of run.json as sentences."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from dptrace.run.utilization import Utilization
from dptrace.viewers.terminal.run_facts import memory_sentence, profiler_sentence, utilization_sentence


def _held(parameters: int, optimizer: int | None = 0, **further: int | None) -> dict[str, Any]:
    held = {"parameters_bytes": parameters, "gradients_bytes": parameters, "optimizer_bytes": optimizer}
    return {"memory": held | further}


@pytest.mark.parametrize(
    ("ranks", "sentence"),
    [
        (
            [_held(4_000_000, peak_process_bytes=300_000_000)],
            (
                "Memory: The rank holds 4.0 MB of parameters, 4.0 MB of gradients and 0 B of optimizer state; "
                "a process used up to 300.0 MB, including Python and torch."
            ),
        ),
        (
            [_held(4_000, 8_000)] * 2,
            "Memory: Each rank holds 4.0 kB of parameters, 4.0 kB of gradients and 8.0 kB of optimizer state.",
        ),
        (
            [_held(4_000, 8_000, peak_allocated_bytes=2), _held(4_000, 9_000, peak_allocated_bytes=7_000_000_000)],
            (
                "Memory: A rank holds up to 4.0 kB of parameters, 4.0 kB of gradients and 9.0 kB of optimizer state; "
                "GPU memory peaked at 7.0 GB."
            ),
        ),
        ([{"memory": {"peak_allocated_bytes": 5_000}}], "Memory: GPU memory peaked at 5.0 kB."),
    ],
    ids=["CPU", "alike", "apart", "peak"],
)
def test_what_a_rank_holds_is_said(ranks: list[dict[str, Any]], sentence: str) -> None:
    """The largest amounts over ranks, and the GPU's peak; the process's where there is no GPU."""
    assert sentence == memory_sentence({"ranks": ranks})


@pytest.mark.parametrize(
    "info", [{}, {"ranks": None}, {"ranks": [5, {}]}, {"ranks": [{"memory": None}]}, {"ranks": [_held(-1, None)]}]
)
def test_what_was_not_recorded_is_not_said(info: dict[str, Any]) -> None:
    """Older runs without memory figures, and run.json files with other content."""
    assert "" == memory_sentence(info)


@pytest.mark.parametrize(("profiled", "cost"), [(120e6, "(+20 %)."), (90e6, "(no overhead seen).")])
def test_the_profilers_overhead_is_a_sentence(profiled: float, cost: str) -> None:
    """The mean over ranks of their median steps; a rank that was not timed is left out."""
    ranks = [{"unprofiled_ns": [100e6, 90e6, 500e6], "profiled_ns": [profiled]}, {"unprofiled_ns": []}]
    text = profiler_sentence({"ranks": ranks, "profiler_overhead": profiled / 100e6 - 1})

    assert "100 ms without the profiler" in text
    assert text.endswith(cost)


def test_what_a_busy_machine_hides_is_said() -> None:
    """No overhead, but the range by window and the processor time; with an overhead, both stand beside it."""
    info = {
        "ranks": [{"unprofiled_ns": [4e6]}],
        "profiler_overhead": None,
        "profiler_overhead_range": [-0.1, 0.95],
        "profiler_cpu_overhead": 0.045,
    }
    hidden, told = profiler_sentence(info), profiler_sentence(info | {"profiler_overhead": 0.5})

    assert "cannot be told" in hidden
    assert "6.00 ms with it" in told
    assert all("-10 % to +95 %" in text and "+4.5 %" in text for text in (hidden, told))


@pytest.mark.parametrize(
    "info",
    [
        {},
        {"profiler_overhead": None, "ranks": []},
        {"profiler_overhead": 0.1, "ranks": []},
        {"profiler_overhead": 0.1, "ranks": [{"unprofiled_ns": "x", "profiled_ns": 5}]},
    ],
)
def test_an_overhead_that_was_not_measured_is_empty(info: dict[str, Any]) -> None:
    """Also where run.json holds something else."""
    assert "" == profiler_sentence(info)


def test_what_a_step_computes_is_one_sentence() -> None:
    """Rates, MFU with its peak, HFU only where something is recomputed; nothing where nothing is known."""
    known = {"tflops": 494.7, "mfu": 0.5, "hfu": 0.6, "peak_tflops": 989.4, "samples_per_s": 320_000.0}
    empty = Utilization((), "", "", "", None, "", None, None, None, None, None)

    found = utilization_sentence(replace(empty, **known, gpu="H100 SXM", dtype="bf16", source="counted"))

    assert "" == utilization_sentence(empty)
    assert all(text in found for text in ("495 TFLOP/s", "MFU 50 % of 989 TFLOP/s (H100 SXM bf16)", "HFU 60 %"))
    assert "HFU" not in utilization_sentence(replace(empty, **known | {"hfu": 0.5}))
