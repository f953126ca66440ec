"""What ranks held in memory, in a sentence."""

from __future__ import annotations

from typing import Any

import pytest

from dptrace.viewers.terminal.run_facts import memory_sentence


def _held(parameters: int, optimizer: int | None = 0, **further: int | None) -> dict[str, Any]:
    found = {"parameters_bytes": parameters, "gradients_bytes": parameters, "optimizer_bytes": optimizer}
    return {"memory": found | further}


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        (
            [_held(4_000_000, peak_process_bytes=300_000_000)],
            (
                "Memory: It holds 4.0 MB of parameters, 4.0 MB of gradients and nothing of optimizer state; "
                "a process took up to 300.0 MB, all of Python and torch in it."
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
def test_what_a_rank_holds_is_said(ranks: list[dict[str, Any]], said: str) -> None:
    """The largest amounts over ranks, and the GPU's peak; the process's where there is no GPU."""
    assert said == memory_sentence({"ranks": ranks})


@pytest.mark.parametrize(
    "info", [{}, {"ranks": None}, {"ranks": [5, {}]}, {"ranks": [{"memory": None}]}, {"ranks": [_held(-1, None)]}]
)
def test_what_was_not_recorded_is_not_said(info: dict[str, Any]) -> None:
    """Runs of before memory was recorded, and run.json files that hold something else."""
    assert "" == memory_sentence(info)
