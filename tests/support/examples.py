"""The documentation's example scripts, with a model that trains in a moment."""

from __future__ import annotations

import re

from tests.support.paths import ROOT

EXAMPLES = ROOT / "docs" / "examples"
_SIZES = {"train.py": (r"(512), 4, (256)$", "64, 4, 32"), "spawn.py": (r"\b(512|256)\b", "32")}


def small(name: str) -> str:
    """Return an example's text, with a smaller model and batch where it trains one.

    Raises:
        AssertionError: its sizes are no longer written so.
    """
    text = (EXAMPLES / name).read_text(encoding="utf-8")
    if name not in _SIZES:
        return text
    changed, count = re.subn(*_SIZES[name], text, flags=re.MULTILINE)
    assert count, name
    return changed
