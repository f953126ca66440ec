"""How a run is to be read."""

from __future__ import annotations

import pytest

from dptrace.errors import UsageError
from dptrace.load.options import ReadOptions


@pytest.mark.parametrize(
    "choices", [{"jobs": 0}, {"jobs": -2}, {"dask": "local"}, {"dask": "local", "jobs": 2, "figures_only": True}]
)
def test_what_makes_no_sense_is_refused(choices: dict[str, object]) -> None:
    """No process reads nothing, and a cluster sends no intervals."""
    with pytest.raises(UsageError):
        ReadOptions(**choices)  # type: ignore[arg-type]
    assert "local" == ReadOptions(dask="local", figures_only=True).dask
