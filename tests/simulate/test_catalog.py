"""The names that can be explained, and what is refused."""

from __future__ import annotations

import pytest

from dptrace.errors import UsageError
from dptrace.simulate.catalog import ENTRIES, entry_named
from dptrace.simulate.explanation import links_of, to_dict
from tests.support.explanations import explained


@pytest.mark.parametrize("ranks", range(2, 10))
@pytest.mark.parametrize("name", ENTRIES)
def test_every_name_works_for_every_number_of_ranks(name: str, ranks: int) -> None:
    """Steps, a cost, and a sentence on what was compared; each step begins with what the one before it left."""
    explanation = explained(name, ranks)

    assert explanation.checked
    assert explanation.cost.seconds > 0
    assert [number + 1 for number in range(len(explanation.steps))] == [step.number for step in explanation.steps]
    for one, following in zip(explanation.steps, explanation.steps[1:], strict=False):
        assert one.after == following.before
    for message in explanation.messages:
        assert message.source != message.target
        assert message.bytes > 0


@pytest.mark.parametrize("name", ENTRIES)
def test_json_has_every_step_and_message(name: str) -> None:
    """As plain values; one step alone where it is asked for."""
    explanation = explained(name, 3)
    content = to_dict(explanation)

    assert [len(step.messages) for step in explanation.steps] == [len(step["messages"]) for step in content["steps"]]
    assert [2] == [step["number"] for step in to_dict(explanation, 2)["steps"]]


def test_names_are_forgiving() -> None:
    """Underscores and capitals do not matter, and a typing error gets a suggestion."""
    assert "all-to-all" == entry_named("All_To_All").name
    with pytest.raises(UsageError, match="Did you mean ring"):
        entry_named("rnig")


@pytest.mark.parametrize(("ranks", "options"), [(1, {}), (33, {}), (4, {"node_size": 0}), (4, {"node_size": 5})])
def test_impossible_numbers_are_refused(ranks: int, options: dict[str, int]) -> None:
    """Before anything is simulated."""
    with pytest.raises(UsageError, match=r"must be from|from 2 to"):
        explained("ring", ranks, 1e6, **options)  # type: ignore[arg-type]


def test_links_have_names_or_figures() -> None:
    """One link or two, or alpha in µs and bandwidth in GB/s."""
    within, between = links_of("nvlink4,ib-ndr", None, None)
    typed, same = links_of(None, 5.0, 12.5)

    assert (450e9, 50e9) == (within.bytes_per_s, between.bytes_per_s)
    assert (5e-6, 12.5e9) == pytest.approx((typed.alpha_s, typed.bytes_per_s))
    assert typed == same
    for wrong in (("warp", None, None), ("a,b,c", None, None), ("pcie4", 1.0, 1.0), (None, 1.0, None)):
        with pytest.raises(UsageError, match=r"--link|--alpha"):
            links_of(*wrong)
