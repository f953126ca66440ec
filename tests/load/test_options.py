"""The options for reading a run."""

from __future__ import annotations

import pytest

from dptrace.errors import UsageError
from dptrace.load.options import ReadOptions


@pytest.mark.parametrize(
    "choices", [{"jobs": 0}, {"jobs": -2}, {"dask": "local"}, {"dask": "local", "jobs": 2, "figures_only": True}]
)
def test_what_makes_no_sense_is_refused(choices: dict[str, object]) -> None:
    """At least one process must read, and a cluster returns no intervals."""
    with pytest.raises(UsageError):
        ReadOptions(**choices)  # type: ignore[arg-type]
    assert "local" == ReadOptions(dask="local", figures_only=True).dask
