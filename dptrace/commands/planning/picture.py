"""The page and the chart of advice, or of a prediction: of a plan, a recording, or a message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dptrace.viewers.base.marks import Drawing

__all__ = ["chart_of", "page_of"]


def page_of(content: Mapping[str, Any]) -> str:
    """Return the page of advice, of a plan, of a recording's prediction, or of a message."""
    if content["kind"] == "advise":
        from dptrace.viewers.planning.advise_page import document
    elif content["kind"] == "message_costs":
        from dptrace.viewers.planning.message_page import document
    elif "recorded" in content:
        from dptrace.viewers.planning.recorded_page import document
    else:
        from dptrace.viewers.planning.predict_page import document
    return document(content)


def chart_of(content: Mapping[str, Any]) -> Drawing:
    """Draw the step by strategy; of one strategy, its efficiency by number of GPUs; of a recording, its roofline; of a
    message, its all-reduces by size; of advice, the steps of its plans."""
    from dptrace.viewers.planning.advise_charts import steps_chart
    from dptrace.viewers.planning.message_chart import message_chart
    from dptrace.viewers.planning.predict_charts import scaling_chart, strategies_chart
    from dptrace.viewers.planning.roofline_chart import recorded_roofline_chart

    if content["kind"] == "advise":
        return steps_chart(content)
    if content["kind"] == "message_costs":
        return message_chart(content)
    if "recorded" in content:
        return recorded_roofline_chart(content)
    return strategies_chart(content) if len(content["candidates"]) > 1 else scaling_chart(content)
