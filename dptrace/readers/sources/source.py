"""The address of a trace file: a path, a URL, a member of an archive, or standard input."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path, PurePath

from dptrace.errors import DptraceError
from dptrace.readers.sources.url import is_url, last_part, redact

__all__ = ["STDIN", "Source"]

STDIN = "-"
"""The argument that means standard input."""


@dataclass(frozen=True, slots=True)
class Source:
    """One trace file; small, so that another process or machine can receive and open it."""

    address: str
    """The address in messages: a path, or a URL without secrets, with ``!MEMBER`` in an archive."""
    place: str = field(default="", repr=False)
    """What is opened, if it differs from the address: a URL with credentials, an archive."""
    member: str = ""
    """The file's name within the archive at *place*."""

    @classmethod
    def of(cls, file: Source | Path | str) -> Source:
        """Make a source from a path, a URL or ``-`` (standard input)."""
        if isinstance(file, Source):
            return file
        text = str(file)
        if is_url(text):
            return cls(redact(text), text)
        return cls("standard input", STDIN) if text == STDIN else cls(text)

    def archive_member(self, member: str) -> Source:
        """Return the source of a file in this archive."""
        return Source(f"{self.address}!{member}", self.place or self.address, member)

    @property
    def name(self) -> str:
        """The last part of the address."""
        return PurePath(self.member).name if self.member else last_part(self.address)

    @property
    def remote(self) -> bool:
        """Whether a URL names the file."""
        return is_url(self.container)

    @property
    def single_pass(self) -> bool:
        """Whether the bytes can be read only once, and only by this process: a pipe, standard input."""
        if self.member or self.remote:
            return False
        try:
            return self.place == STDIN or (Path(self.address).exists() and not Path(self.address).is_file())
        except OSError:
            return False

    @property
    def container(self) -> str:
        """The path or URL that is opened: the archive of a member, else the file itself."""
        return self.place or self.address

    def outer(self) -> Source:
        """Return the archive that the file is in, or the file itself."""
        return Source.of(self.container)

    def absolute(self) -> Source:
        """Return the same file by an absolute path, for a process in another working folder.

        Raises:
            DptraceError: the file is a pipe, which no other process can read.
        """
        if self.remote:
            return self
        if self.single_pass and not Path(self.address).is_dir():
            raise DptraceError(f"{self.address}: is a pipe, which other processes can't read; save it as a file.")
        whole = Source(os.path.abspath(self.container))
        return whole.archive_member(self.member) if self.member else whole
