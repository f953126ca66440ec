"""The page of a comparison, in a browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from dptrace.analysis.per_gpu.split import Part
from dptrace.comparison.compare import Comparison, compare
from dptrace.core.units import milliseconds
from dptrace.errors import DptraceError
from dptrace.viewers.base import theme
from dptrace.viewers.gantt.page import pair as pair_page
from dptrace.viewers.pages import comparison
from tests.comparison.test_sides import alternating
from tests.support.browser import browser_test, open_page
from tests.support.gantt_page import settle
from tests.support.jobs import job, run_of

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="module")
def found() -> Comparison:
    return compare(job(path="runs/main"), job(seed=1, factors={"backward": 1.1}, path="runs/branch"))


@pytest.fixture(scope="module")
def file(found: Comparison, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pages") / "diff.html"
    path.write_text(comparison.document(found, (5, 7)), encoding="utf-8")
    return path


@pytest.mark.slow
@browser_test
def test_the_page_shows_both_runs_and_how_they_differ(browser: Browser, file: Path, found: Comparison) -> None:
    """Without a complaint: A's GPUs over B's, each from 0 and as long as its step; a line of figures for each, of its
    own split; the sentence above, and below a row for each figure, collective and kernel, in the colors of the page."""
    with open_page(browser, file) as (page, errors):
        settle(page)
        tracks = page.evaluate("dptrace.scene.tracks.map(({ label, bounds }) => [label, ...bounds])")
        assert [f"{x} · rank {rank} · GPU {rank}" for x in "AB" for rank in (0, 1)] == [track[0] for track in tracks]
        walls = [found.a.figures["wall_ns"][0][1], found.b.figures["wall_ns"][0][3]]
        assert [walls[0], walls[1]] == [tracks[0][2] - tracks[0][1], tracks[2][2] - tracks[2][1]]
        assert 0 == min(tracks[0][1], tracks[1][1]) == min(tracks[2][1], tracks[3][1])
        assert "runs/main → runs/branch" == page.locator("h1").get_attribute("title")

        sums = [
            sum(float(ns) for ns in bar.evaluate("bar => [...bar.children].map((one) => one.dataset.ns)"))
            for bar in page.locator("#summary .bar").all()
        ]
        assert ["A · step 5", "B · step 7"] == page.locator("#summary .window b").all_text_contents()
        assert [one.figures["wall_ns"][:, step].sum() for one, step in ((found.a, 1), (found.b, 3))] == sums

        assert found.summary() == page.locator(".answer").text_content()
        rows = {
            row.locator("th").text_content(): row.locator("td").all_text_contents()
            for row in page.locator("#comparison section").first.locator("tbody tr").all()
        }
        change = found.change("backward_ns")
        assert [milliseconds(change.a), milliseconds(change.b), "moved"] == [
            *rows["backward"][:2],
            rows["backward"][-1],
        ]
        assert 4 == page.locator("#comparison h2").count()
        ids = page.eval_on_selector_all("[id]", "all => all.map(({ id }) => id)")
        assert len(set(ids)) == len(ids)

        forward = "getComputedStyle(document.querySelector('#comparison .swatch')).backgroundColor"
        for mode, color in (
            ("light", theme.PART_COLORS[Part.FORWARD]),
            ("dark", theme.DARK[theme.PART_COLORS[Part.FORWARD]][0]),
        ):
            page.evaluate("(mode) => (dptrace.theme.mode = mode)", mode)
            red, green, blue = map(int, re.findall(r"\d+", page.evaluate(forward)))
            assert color == f"#{red:02X}{green:02X}{blue:02X}"
        assert [] == errors


@pytest.mark.heavy
def test_the_steps_of_median_length_are_drawn(found: Comparison) -> None:
    """They are the default; an unknown step is an error that lists the existing ones."""
    walls = found.a.figures["wall_ns"].mean(axis=0)
    middle = sorted(range(8), key=lambda k: walls[k])[3:5]
    page = comparison.document(found)

    assert any(f"A \\u00b7 step {k + 4}" in page or f"A · step {k + 4}" in page for k in middle)
    assert any(f"one step of each: A&#39;s ProfilerStep#{k + 4} and B&#39;s ProfilerStep#" in page for k in middle)
    with pytest.raises(DptraceError, match="ProfilerStep#4 to ProfilerStep#11"):
        comparison.document(found, (99, 4))


@pytest.mark.heavy
def test_a_step_that_was_left_out_can_be_drawn() -> None:
    """The slow first step may be the interesting one."""
    found = compare(job(), job(seed=1, first=3))

    assert ["ProfilerStep#4"] == [name for name, _ in found.b.left_out]
    assert "B · step 4" in comparison.document(found, (4, 4)).replace("\\u00b7", "·")


@pytest.mark.heavy
def test_ranks_of_clocks_apart_each_begin_at_zero() -> None:
    """The page says so."""
    one, two = job().timelines
    far = replace(
        two,
        start_ns=two.start_ns + 10**12,
        end_ns=two.end_ns + 10**12,
        windows=replace(two.windows, bounds=two.windows.bounds + 10**12),
    )

    assert "clocks differ too much" in comparison.document(compare(run_of([one, far]).on_own_clocks(), job()))
    assert "clocks differ too much" not in comparison.document(compare(job(), job(seed=1)))


def test_more_than_a_page_holds_is_refused(found: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message says what to do."""
    monkeypatch.setattr(pair_page, "MAX_INTERVALS", 10)

    with pytest.raises(DptraceError, match="--ranks"):
        comparison.document(found)


@pytest.mark.heavy
def test_the_page_of_several_recordings_names_all_and_draws_one_of_each_side() -> None:
    """A note says which are drawn; time is saved, since the step time differs beyond noise."""
    before = [job(seed=seed, path=f"runs/main-{seed}") for seed in range(3)]
    after = [job(seed=seed, path=f"runs/branch-{seed}", factors={"backward": 0.8}) for seed in range(3, 6)]
    found = compare(before, after)
    page = comparison.document(found)

    assert all(f"<b>{side}{k}</b>" in page for side in "AB" for k in (1, 2, 3))
    assert f"Drawn are A{found.before.index(found.a) + 1} and B{found.after.index(found.b) + 1}" in page
    assert '"certain":true' in page.replace(" ", "")
    assert found.summary() in page


@pytest.mark.slow
def test_steps_of_one_kind_are_drawn() -> None:
    """The step of B does what the drawn step of A does, in each table of the page."""
    for odd in (0, 1):
        a, b = alternating(start=odd), alternating(seed=1)
        found = compare(a, b)
        page = comparison.document(found)
        drawn = [int(number) for number in re.findall(r"[AB] · step (\d+)", page.replace("\\u00b7", "·"))[:2]]

        assert (drawn[0] + odd) % 2 == drawn[1] % 2, odd
        assert all(f"Steps of kind “{kind.kind}”" in page for kind in found.kinds), odd
