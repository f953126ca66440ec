"""Pipelines' schedules in the versions of torch that have them, and a word where they are missing."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest

pytest.importorskip("torch")

from dptrace.errors import UsageError
from dptrace.trainers.parts import pipeline_schedule
from dptrace.trainers.parts.pipeline_schedule import step_settings


def test_only_known_options_are_passed_to_a_step() -> None:
    """torch 2.6 to 2.9 would hand the option to the model, which fails; later versions know it."""

    def old(*inputs: Any, target: Any = None, losses: list[Any] | None = None, **for_the_model: Any) -> None: ...

    def new(*inputs: Any, target: Any = None, return_outputs: bool = True, **for_the_model: Any) -> None: ...

    assert {} == step_settings(old)
    assert {"return_outputs": False} == step_settings(new)


def test_a_torch_without_pipelines_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that lacks a schedule gives advice instead of a traceback of the import."""
    monkeypatch.setitem(sys.modules, "torch.distributed.pipelining", None)
    monkeypatch.delitem(sys.modules, pipeline_schedule.__name__)

    with pytest.raises(UsageError, match=r"2\.6"):
        importlib.import_module(pipeline_schedule.__name__)
