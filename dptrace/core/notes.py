"""Notes: what limits the figures of a run, a sentence each."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dptrace.core.units import plural


class Note(msgspec.Struct, frozen=True):
    """A sentence on a run, or on one of its files."""

    text: str
    """The sentence, with ``{}`` in the place of each of *numbers*."""
    numbers: tuple[str, ...] = ()
    file: str = ""
    """The file's name; empty for the whole run."""
    kind: str = ""
    """What it is about, for code that must know; empty for most."""

    def __str__(self) -> str:
        """Return the sentence, after the name of its file."""
        first, *rest = self.text.split("{}", len(self.numbers))
        sentence = first + "".join(number + part for number, part in zip(self.numbers, rest, strict=True))
        return f"{self.file}: {sentence}" if self.file else sentence


def merged(notes: Iterable[Note]) -> list[str]:
    """Return the sentences; of those on files that differ in the file and in numbers only, the first.

    >>> merged(Note("{} left out.", (count,), file) for file, count in (("a", "1 event"), ("b", "2 events")))
    ['a: 1 event left out. The same holds for 1 more file.']
    """
    alike: dict[str, list[str]] = {}
    for note in notes:
        alike.setdefault(note.text if note.file else str(note), []).append(str(note))
    return [
        first if not others else f"{first} The same holds for {plural(len(others), 'more file')}."
        for first, *others in alike.values()
    ]
