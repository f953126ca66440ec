"""Notes: what limits the figures of a run, a sentence each."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from dptrace.core.units import plural

# Premises of figures, as kinds of the notes that say where they fail; "What a recording lacks" in docs/definitions.md.

MARKS = "marks"
"""Steps are marked."""
LAUNCHES = "launches"
"""The calls that launch a GPU's work are known."""
OPERATORS = "operators"
"""Operators are recorded."""
LABELS = "labels"
"""The labels around a training's phases are recorded."""
RECORDS = "records"
"""A GPU's work is recorded whole."""
LENGTHS = "lengths"
"""The durations of a GPU's work are those that it had."""
COLLECTIVES = "collectives"
"""Collectives that operators request are recorded."""
ALL_STEPS = "all steps"
"""They are recorded in all steps."""
DEVICE = "device"
"""The device is one whose work dptrace reads."""
GPU_EVENTS = "GPU events"
"""A machine with a GPU has recorded its work."""
SUMS = "sums"
"""Figures that belong together add up; otherwise it is a fault of dptrace."""

PHASES_NEED = (LAUNCHES, OPERATORS, LABELS)
"""What the phase of work needs."""
REASONS = {
    MARKS: "no steps are marked",
    LAUNCHES: "the calls that launched the work are not known",
    OPERATORS: "no operators are recorded",
    LABELS: "the labels of phases are not recorded",
    RECORDS: "records of work were lost",
    LENGTHS: "durations of work are wrong",
    COLLECTIVES: "the collectives were not recorded",
    ALL_STEPS: "the collectives of some steps were not recorded",
    DEVICE: "dptrace does not read the device's work",
    GPU_EVENTS: "the GPU's work was not recorded",
    SUMS: "figures contradict each other, which is a fault of dptrace: please report it with the trace",
}
"""Why a figure is unknown, by the premise that fails: the end of a sentence with "unknown, because"."""


SEVERAL_RUNS = ("look like two runs", "are from different jobs", "is outside world size")
"""What notes say of files that are not those of one run: figures across ranks then mean nothing."""
SELECTED = "Only "
"""How a note begins that says which ranks or steps were selected."""
CUT = "Any step may lack work from the missing part"
"""What is said of a file that is cut."""


class Note(msgspec.Struct, frozen=True):
    """A sentence on a run, or on one of its files."""

    text: str
    """The sentence, with ``{}`` in the place of each of *numbers*."""
    numbers: tuple[str, ...] = ()
    file: str = ""
    """The file's name; empty for the whole run."""
    kind: str = ""
    """The premise that fails, one of those above; empty for what limits no figure."""

    @property
    def is_cut(self) -> bool:
        """Whether it says that a file is cut, so that work is missing."""
        return CUT in self.text

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
