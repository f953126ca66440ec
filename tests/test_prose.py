"""The prose of the product is plain: pages, help, messages and docstrings avoid words at which readers stop."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import ROOT

_WORDS = (
    *(
        "told",
        "tells",
        "telling",
        "anew",
        "dearest",
        "beside",
        "lest",
        "upon",
        "hence",
        "thereby",
        "whereas",
        "wherein",
    ),
    *("whereof", "thereof", "likewise", "ought", "shall", "honour", "honours", "honoured"),
    *("neighbour", "neighbours", "neighbouring"),
)
_PHRASES = (
    *("does not tell", "do not tell", "don't tell", "said of", "is said to", "nothing is said", "nothing can be said"),
    *("for ever", "by turns", "by halves", "but for", "came to", "none of a", "is no file", "its like", "makes way"),
    *("a tenth less", "a hundredth of", "taken to be", "taken to differ", "what it should be", "no further evidence"),
)
_IDIOM = re.compile(rf"\b(?:{'|'.join([*_WORDS, *_PHRASES])})\b", re.IGNORECASE)
_OPENINGS = ('"""Give', '"""Tell', '"""Say')
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`|\]\([^)\n]*\)", re.MULTILINE | re.DOTALL)
_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/**/*.md", "trainers/README.md", "benchmarks/README.md")


def test_pages_help_messages_and_docstrings_are_in_plain_words() -> None:
    """None contains an idiom of the list; code may."""
    offenders: list[str] = []
    for pattern in _PAGES:
        for path in ROOT.glob(pattern):
            text = path.read_text(encoding="utf-8")
            offenders += _idioms(path, 1, _CODE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), text))
    for path in _modules():
        source = path.read_text(encoding="utf-8")
        if _may_offend(source.lower()):  # parsing every file would take seconds
            for line, text in _strings(source):
                offenders += _idioms(path, line, text)
    assert not offenders


def test_docstrings_say_what_a_function_does() -> None:
    """None opens with Give, Tell or Say: Return, Compute, Read, Draw and Write are clearer."""
    offenders = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in _modules()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if line.lstrip().startswith(_OPENINGS)
    ]
    assert not offenders


def _modules() -> Iterator[Path]:
    for folder in ("dptrace", "viewers", "trainers"):
        for path in (ROOT / folder).rglob("*.py"):
            if not any(parent.is_symlink() for parent in path.parents):
                yield path


def _may_offend(text: str) -> bool:
    return not set(re.findall(r"[a-z]+", text)).isdisjoint(_WORDS) or any(phrase in text for phrase in _PHRASES)


def _strings(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of every string with a space; ``code`` in it is left out."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, re.sub(r"``[^`]+``", "", node.value)


def _idioms(path: Path, line: int, text: str) -> Iterator[str]:
    for found in _IDIOM.finditer(text):
        yield f"{path.relative_to(ROOT)}:{line + text.count(chr(10), 0, found.start())}: {found[0]}"
