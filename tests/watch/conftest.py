"""What each test of a watch begins with."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture(autouse=True)
def _optimizers_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget a test that has asked for ``dptrace.record.step``, which then counts instead of the optimizer."""
    monkeypatch.delitem(sys.modules, "dptrace.record.script.explicit_step", raising=False)
