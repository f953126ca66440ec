"""An explanation in Python."""

from __future__ import annotations

from pathlib import Path

from dptrace.viewers.explain.notebook import Explained
from tests.support.explanations import explained


def test_it_has_steps_text_and_pages(tmp_path: Path) -> None:
    """A notebook's frame holds the page that save writes, and print shows the terminal's text."""
    shown = Explained(explained("ring", 3, 6e6))
    shown.save(tmp_path / "ring.html")

    assert 4 == len(shown.steps)
    assert (8e6,) * 3 == shown.cost.sent_bytes
    assert "Step 4 of 4" in str(shown)
    assert "3 ranks, 4 steps" in repr(shown)
    assert "NumPy" in shown.checked
    assert 4 == len(shown.to_dict()["steps"])
    assert "<svg" in (tmp_path / "ring.html").read_text()
    assert 'sandbox="allow-scripts"' in shown._repr_html_()
