"""A links.json from elsewhere: what can be drawn is accepted, and anything else is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from dptrace.bench.links.schema import check_links
from dptrace.commands.shared.output import json_text
from dptrace.model.link_report import link_report
from tests.support.links_samples import measured, with_algorithms


def written(**changes: Any) -> Any:
    return json.loads(json_text(link_report(measured() | changes)))


def first(content: Any) -> Any:
    return content["collectives"]["all_reduce"]


@pytest.mark.parametrize("sizes", [1, 2, 3, 17])
def test_what_is_measured_is_accepted(sizes: int) -> None:
    """Any number of sizes, also too few for a fit; a collective of another name; more keys."""
    samples = [sample for sample in measured()["samples"] if sample["bytes"] < 1024 << sizes]
    content = written(samples=samples, later="key")
    content["collectives"]["all_to_some"] = first(content)

    assert "" == check_links(content)


EDITS: dict[str, Callable[[Any], object]] = {
    "a missing figure": lambda content: first(content).pop("busbw_at_bytes"),
    "a text for a number": lambda content: first(content)["measured"][2].update(median_s="12"),
    "no sizes": lambda content: first(content).update(measured=[]),
    "a time of zero": lambda content: first(content)["measured"][0].update(quarter_s=0),
    "a fit without its link": lambda content: first(content).update(link=None),
    "a list for an object": lambda content: content.update(collectives={"all_reduce": []}),
    "an infinite number": lambda content: first(content)["fit"].update(alpha_s=1e308),
    "no machines": lambda content: content.pop("machines"),
}


@pytest.mark.heavy
@pytest.mark.parametrize("edit", EDITS)
def test_what_cannot_be_drawn_is_refused(edit: str) -> None:
    """One line says what is wrong."""
    content = written()
    EDITS[edit](content)

    wrong = check_links(content)

    assert wrong
    assert "\n" not in wrong


def test_timed_algorithms_are_accepted_and_checked() -> None:
    """With predictions, without any, and refused where a time is none."""
    content = json.loads(json_text(link_report(with_algorithms(measured(kinds=("all_reduce", "send_recv"))))))
    bare = json.loads(json_text(link_report(with_algorithms(measured(kinds=("broadcast",))))))
    assert ("", "") == (check_links(content), check_links(bare))

    content["algorithms"]["all_reduce"]["ring"]["measured"][0]["median_s"] = 0
    assert "median_s" in check_links(content)
