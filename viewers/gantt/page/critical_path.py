"""The Gantt page of the step whose critical path it shows."""

from __future__ import annotations

import re

from dptrace.replay.critical_path import CriticalPath
from dptrace.run.run import Run
from dptrace.viewers.gantt.page.document import document

__all__ = ["step_document"]


def step_document(run: Run, path: CriticalPath) -> str:
    """Draw the path on the chart of its step, or of the whole run where steps have no numbers.

    Raises:
        DptraceError: there are more intervals than a page can hold.
    """
    number = re.search(r"(\d+)$", path.step)
    part = run.select(steps=(int(number[1]), int(number[1]))) if number else run
    return document(part, path=path)
