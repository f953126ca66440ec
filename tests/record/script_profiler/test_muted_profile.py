"""The empty result of a profiler that could not run."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")


def test_older_versions_of_torch_get_an_empty_list_of_events() -> None:
    """Torch 2.4 keeps the events in an attribute, which its methods require; later versions derive them."""
    from dptrace.record.script_profiler.muted_profile import fill_with_nothing

    old = SimpleNamespace(function_events=None)
    fill_with_nothing(old)

    assert 0 == len(old.function_events)
    assert 0 == old.kineto_results.trace_start_ns() == len(old.kineto_results.experimental_event_tree())
    assert 0 == len(old.kineto_results.trace_activities())
