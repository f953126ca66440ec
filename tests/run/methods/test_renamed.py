"""The old names of a run's methods work for one more release."""

from __future__ import annotations

import pytest

from dptrace.run.run import Run


def test_an_old_name_works_and_says_the_new_one() -> None:
    """A name that never was is refused as Python does."""
    run = Run("run", (), {"made": "here"})

    with pytest.warns(DeprecationWarning, match="metadata"):
        assert {"made": "here"} == run.info  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="unheard"):
        _ = run.unheard  # type: ignore[attr-defined]
