"""The page of a message."""

from __future__ import annotations

from dptrace.model.training.communication import Link, Network, message_costs
from dptrace.viewers.planning.message_page import document


def test_the_page_has_the_chart_and_the_tables() -> None:
    """A link's name is text."""
    link = Link("<b>link</b>", 5e-6, 25e9)
    page = document(message_costs(Network(link, link, 8), 208e6, 4, 0.0))

    assert 'id="view-chart-message"' in page
    assert "1,248 MB" in page
    assert "<b>link</b>" not in page.replace('"<b>link</b>', "")
