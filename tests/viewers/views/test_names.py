"""The names of the views, which help lists without loading any of them."""

from __future__ import annotations

import subprocess
import sys

from dptrace.viewers.views.names import NAMES


def test_each_says_what_it_shows() -> None:
    """Each has one line that fits a terminal."""
    assert "gantt" == next(iter(NAMES))
    assert all(about and len(about) < 72 for about in NAMES.values())


def test_they_load_no_view() -> None:
    """So that help is fast."""
    code = "import sys, dptrace.viewers.views.names; print(sorted({'numpy', 'bokeh', 'rich'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert "[]" == done.stdout.strip()
