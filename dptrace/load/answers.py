"""Answers about a run in the cache: each is an entry of its own, beside those of the run's files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.load.options import ReadOptions
from dptrace.load.rank_file import answer_entry, read_entry, store_entry
from dptrace.readers.source import Source
from dptrace.readers.storage import file_identity

Value = TypeVar("Value")


class StoredAnswers(msgspec.Struct, frozen=True):
    """Keeps answers about a run in the cache."""

    files: tuple[Source, ...]
    identities: tuple[object, ...]
    """Of the files, before they were read."""
    read_options: ReadOptions
    devices: tuple[DeviceFigures, ...]
    """The devices of the run as it was read."""

    def __call__(
        self,
        devices: Sequence[DeviceFigures],
        question: Sequence[object],
        type: type[Value],
        compute: Callable[[], Value],
    ) -> Value:
        """Return an answer that the cache has, or compute it, and keep it where nothing has changed since.

        Args:
            devices: of the run as it is asked; none of what is computed of others is kept.
            question: all that the answer depends on besides the files, how they were read, and the code.
            type: of the answer, whose values are plain.
        """
        if devices is not self.devices:
            return compute()
        how = self.read_options.patterns, self.read_options.strict, self.read_options.ignore
        entry = answer_entry(self.identities, (*how, *question))
        known = read_entry(entry, type, mapped=False)
        if known is not None:
            return known
        answer = compute()
        if identities_of(self.files) == self.identities:
            store_entry(entry, answer)
        return answer


def identities_of(files: Sequence[Source]) -> tuple[object, ...]:
    """Return what changes with each of the files; None for one of which it is not known."""
    return tuple(map(file_identity, files))
