"""The Gantt chart as a view: ``viewers/gantt`` draws it, its table is that of the summary."""

from __future__ import annotations

from dptrace.viewers.views.registry import View
from dptrace.viewers.views.steps.summary import summary_table

__all__ = ["VIEW"]

VIEW = View("gantt", "Gantt chart", summary_table)
