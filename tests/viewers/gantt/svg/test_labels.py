"""Labels in the static Gantt chart."""

from __future__ import annotations

import re

import pytest

from dptrace.run.run import Run
from dptrace.timeline.model import Collective
from dptrace.viewers.base import theme
from dptrace.viewers.gantt.svg.chart import gantt_svg
from tests.support.builders import TimelineBuilder
from tests.support.jobs import late_run


def texts(run: Run) -> list[str]:
    """Return all texts of a picture."""
    return re.findall(r"<text[^>]*>([^<]*)</text>", gantt_svg(run, heading=False))


def test_a_wait_shows_whom_it_is_for_and_how_long_it_takes() -> None:
    """In the row of phases and in that of communication; the transfer after it bears the collective's name."""
    shown = texts(late_run(20, 70))

    assert "Waiting for rank 1 · 50.00 ms" in shown
    assert any("waiting for rank 1 · 50.0 ms" in text for text in shown)
    assert 2 == sum(text.startswith("all_reduce 4.1 kB") for text in shown)


def test_a_label_stands_on_a_plain_ground() -> None:
    """The lines of a pattern would cross the text."""
    text = gantt_svg(late_run(20, 70))

    assert 2 == len(re.findall(rf'<rect [^>]*rx="3" fill="{theme.WAITING}"/>\n<text', text))


@pytest.mark.parametrize(("label", "expected"), [("FSDP::all_gather (layers.3)", "AG layers.3"), ("", "all_gather")])
def test_a_collective_is_called_by_its_layer_where_that_is_known(label: str, expected: str) -> None:
    """Else by its kind."""
    comm = Collective("all_gather", 2_000_000, "float", "0", 1, label=label)
    build = TimelineBuilder(0, bounds=(0, 1_000_000)).collective(100_000, 900_000, comm)

    assert f"{expected} 2.0 MB" in texts(Run("one", (build.build(),)))
