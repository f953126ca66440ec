"""Marks of phases."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")


def test_a_phase_has_one_of_four_names() -> None:
    """A mark that the timeline does not know is refused."""
    from dptrace.record import phase

    with pytest.raises(ValueError, match="forward, backward, optimizer, other"):
        phase("bakward")  # type: ignore[arg-type]
