"""Links between the pages of the documentation lead somewhere, on GitHub, too."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import ROOT

PAGES = sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("tr*/README.md")))


def prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> Iterator[str]:
    """Yield the names by which GitHub finds the headings of a page: words in small letters, joined by hyphens."""
    seen: Counter[str] = Counter()
    for heading in re.findall(r"^#{1,6} (.+)$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        name = "".join(letter for letter in text if letter.isalnum() or letter in " -_").replace(" ", "-")
        yield f"{name}-{seen[name]}" if seen[name] else name
        seen[name] += 1


def test_every_link_leads_somewhere() -> None:
    """To a file that exists and, where it names a heading, to one that GitHub finds by that name."""
    known = {page: {*anchors(page)} for page in PAGES}
    broken = []
    for page in PAGES:
        for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if not link.startswith(("http", "mailto")) and not (
                target.exists() and (not anchor or target.suffix != ".md" or anchor in known[target])
            ):
                broken.append(f"{page.relative_to(ROOT)}: {link}")

    assert sum(map(len, known.values())) > 200
    assert not broken
