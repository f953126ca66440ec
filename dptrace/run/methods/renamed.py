"""Names of a run's methods in version 0.1, which warn; the next release drops them."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

__all__ = ["RenamedMethods"]


class RenamedMethods:
    """The methods and attributes under their old names."""

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Return what a name of version 0.1 is called now; deprecated."""
            if name not in _RENAMED:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            _warn(name, _RENAMED[name])
            return getattr(self, _RENAMED[name])


_RENAMED = {
    "actions": "pipeline_actions",
    "beside": "analyze_cross_rank",
    "clocks": "clock_offsets",
    "diff": "compare",
    "idle": "idle_causes",
    "info": "metadata",
    "intervals": "kernels",
    "matches": "matched_collectives",
    "together": "cross_rank",
    "view": "show",
}
"""Names of version 0.1, kept for one release."""


def _warn(old: str, new: str) -> None:
    warnings.warn(f"Run.{old} is now Run.{new}; the next release drops the old name.", DeprecationWarning, stacklevel=3)
