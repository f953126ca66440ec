"""Limits for continuous integration."""

from __future__ import annotations

import pytest

from dptrace.comparison.compare import FIGURE_NAMES, GRAMMAR, Comparison, compare, parse
from dptrace.errors import UsageError
from tests.support.builders import TimelineBuilder
from tests.support.jobs import job, run_of


@pytest.fixture(scope="module")
def slower() -> Comparison:
    """Backward 10 % longer: 6 ms, beyond noise."""
    return compare(job(), job(seed=1, factors={"backward": 1.1}))


@pytest.fixture(scope="module")
def few() -> Comparison:
    """The same with three steps: too few to decide."""
    return compare(job(steps=3), job(steps=3, seed=1, factors={"backward": 1.1}))


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("text", "failed"),
    [
        ("backward > +5%", True),
        ("backward_ns>+5 %", True),
        ("Backward > +15%", False),
        ("backward > +2ms", True),
        ("backward > +2000us", True),
        ("backward > +0.02s", False),
        ("backward > 50ms", True),
        ("backward > 70 ms", False),
        ("backward < 70 ms", True),
        ("backward > 50%", True),
        ("backward > 70%", False),
        ("wall > +3%", True),
        ("step > +3%", True),
        ("backward < -1%", False),
        ("wall > -5%", True),
        ("forward > +0.001%", False),
        ("exposed communication > +50%", False),
        ("idle > 1ms", True),
        ("data loading > 1ms", False),
        ("overlap < 60%", True),
        ("overlap < 10%", False),
        ("overlap > −1%", True),
        ("waiting > +5%", False),
    ],
)
def test_limits(slower: Comparison, text: str, failed: bool) -> None:
    """Each form, with other spellings; the text begins with the limit as it was given."""
    crossing = parse(text).check(slower)

    assert failed == crossing.failed
    assert crossing.text.startswith(text)


def test_what_may_be_noise_does_not_fail_unless_asked(slower: Comparison, few: Comparison) -> None:
    """The message says that the limit is crossed, and why that does not count."""
    limit = parse("backward > +5%")
    crossing = limit.check(few)

    assert (True, False) == (crossing.crossed, crossing.failed)
    assert "3 steps per run are too few" in crossing.text
    assert limit.check(few, even_noise=True).failed
    hair = parse("forward > +0.0001%") if slower.change("forward_ns").delta > 0 else parse("forward < -0.0001%")
    assert "within noise" in hair.check(slower).text
    assert hair.check(slower, even_noise=True).failed


def test_a_gain_that_is_asked_for_and_not_had_fails(few: Comparison) -> None:
    """`wall > -5%` asks for a step at least 5 % shorter."""
    assert parse("wall > -5%").check(few).failed
    assert not parse("wall > -5%").check(compare(job(), job(factors={"backward": 0.5}))).failed


@pytest.mark.heavy
def test_from_nothing_to_something_is_beyond_any_percentage() -> None:
    """Exposed communication that A did not have."""
    found = compare(job(factors={"exposed": 0}), job(seed=1))

    assert parse("exposed_comm > +1000%").check(found).failed


def test_overlap_without_communication_is_kept() -> None:
    """And it is said why."""
    none = run_of([TimelineBuilder().compute(0, 100).build()])
    crossing = parse("overlap < 50%").check(compare(none, none))

    assert not crossing.failed
    assert "no communication" in crossing.text


@pytest.mark.parametrize("name", FIGURE_NAMES)
def test_every_figure_has_its_names(name: str) -> None:
    """As in JSON, without its unit, and in words."""
    assert {name} == {parse(f"{word} > 1ms").figure for word in (name, name.removesuffix("_ns"), FIGURE_NAMES[name])}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", GRAMMAR),
        ("backward", GRAMMAR),
        ("backward > 5", GRAMMAR),
        ("backward >= 5%", GRAMMAR),
        ("backward > +5% > 3%", GRAMMAR),
        ("__class__ > 5%", GRAMMAR),
        ("speed > 5%", "figure 'speed'"),
        ("wall > 5 minutes", "unit 'minutes'"),
        ("overlap > 5ms", "overlap is %"),
        ("wall > 5%", "did you mean > +5%?"),
    ],
)
def test_what_is_no_limit_is_answered_with_the_grammar(text: str, words: str) -> None:
    """The message contains the grammar, or names what is wrong."""
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert words in str(caught.value)
