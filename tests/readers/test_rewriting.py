"""A short run of harmless rewritings; tests/support/rewriting.py makes thousands."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.support.rewriting import Rewriter
from tests.support.silent_damage import figures


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("seed", [1, random.SystemRandom().randrange(1 << 30)], ids=["fixed", "random"])
def test_no_spelling_changes_a_figure(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of keys and events, unknown keys, white space, escapes and spellings of numbers change nothing."""
    monkeypatch.setattr("dptrace.readers.stream.CHUNK", 1 << 20)  # the rewriter changes it; monkeypatch restores it

    found = [f"seed {seed}, number {each.number}: {each.what}" for each in Rewriter(seed).differences(iter(range(10)))]

    assert not found, "\n".join(found)


@pytest.mark.slow
@pytest.mark.heavy
def test_a_changed_time_is_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison can fail."""
    monkeypatch.setattr("dptrace.readers.stream.CHUNK", 1 << 20)
    rewriter = Rewriter(3)
    list(rewriter.differences(iter(range(3))))
    for document in rewriter.documents:
        for event in document["traceEvents"]:
            event["dur"] = event.get("dur", 0) + 1

    assert 3 == len(list(rewriter.differences(iter(range(3)))))


def test_figures_of_an_unreadable_file_are_its_error(tmp_path: Path) -> None:
    """A rewriting that makes a file unreadable is a difference, too."""
    (tmp_path / "rank0.json").write_text("{}")

    assert "has no traceEvents" in figures(tmp_path / "rank0.json")["error"]
