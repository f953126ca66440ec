"""A trace file, wherever it lies: its address, its bytes, and what tells it from another of that name."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from dptrace.errors import DptraceError
from dptrace.readers.sources.url import is_url, last_part, redact

__all__ = ["STDIN", "Source"]

STDIN = "-"
"""What the user types for standard input."""


@dataclass(frozen=True, slots=True)
class Source:
    """One trace file; small, so that it can be sent to another process or machine and opened there."""

    address: str
    """As messages name it: a path or a URL without what it holds of secrets, with ``!MEMBER`` in an archive."""
    place: str = field(default="", repr=False)
    """What is opened where the address does not say it all: a URL with its credentials, an archive."""
    member: str = ""
    """The file's name within the archive at *place*."""

    @classmethod
    def of(cls, file: Source | Path | str) -> Source:
        """Take a path, a URL or ``-`` (standard input) for the file that it names."""
        if isinstance(file, Source):
            return file
        text = str(file)
        if is_url(text):
            return cls(redact(text), text)
        return cls("standard input", STDIN) if text == STDIN else cls(text)

    def archive_member(self, member: str) -> Source:
        """Give a file of this archive."""
        return Source(f"{self.address}!{member}", self.place or self.address, member)

    @property
    def name(self) -> str:
        """Give the last part of the address."""
        return PurePath(self.member).name if self.member else last_part(self.address)

    @property
    def remote(self) -> bool:
        """Tell whether the file comes over a network, or from whatever else a URL names."""
        return is_url(self.container)

    @property
    def single_pass(self) -> bool:
        """Tell whether the bytes can be read once only, and by this process alone: a pipe, standard input."""
        if self.member or self.remote:
            return False
        try:
            return self.place == STDIN or (Path(self.address).exists() and not Path(self.address).is_file())
        except OSError:
            return False

    @property
    def container(self) -> str:
        """Return the path or URL that is opened: the archive of a member, else the file itself."""
        return self.place or self.address

    def outer(self) -> Source:
        """Return the archive that the file is in, or the file itself."""
        return Source.of(self.container)

    def absolute(self) -> Source:
        """Give the same file by an address that holds in any folder, for a process that works in another.

        Raises:
            DptraceError: it is a pipe, which no other process can read.
        """
        if self.remote:
            return self
        if self.single_pass and not Path(self.address).is_dir():
            raise DptraceError(f"{self.address}: is a pipe, which this process alone can read; save it as a file.")
        whole = Source(os.path.abspath(self.container))
        return whole.archive_member(self.member) if self.member else whole
