"""Where other people's recordings lie, for tests that use them; see their CATALOGUE.md."""

from __future__ import annotations

from pathlib import Path

import pytest

REAL = Path(__file__).resolve().parents[2].parent / "shared" / "traces"

needs_real_traces = pytest.mark.skipif(
    not (REAL / "golden.json").exists(),
    reason=f"the recordings of others are not here ({REAL}); they can't be committed",
)


_TIMELINES = "straggler_analysis"
"""A folder of timelines of stages, which torch.profiler has not written."""


def real_files() -> list[Path]:
    """List the files of torch.profiler; none where they are not here."""
    return sorted(path for path in REAL.rglob("*.json.gz") if _TIMELINES not in path.parts)


def real(name: str) -> str:
    """Give the path of a recording by its name in the catalogue."""
    return str(REAL / name)
