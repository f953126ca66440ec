"""Decode the events of a piece of a trace file; drop damaged ones, and count them."""

from __future__ import annotations

import os
import re
from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import astuple, replace

from dptrace.core.subprocess_pool import PythonProcess, serve
from dptrace.errors import DptraceError
from dptrace.readers.kineto.columns import Columns, DecodedPart, EventSink, IdMap
from dptrace.readers.kineto.event_schema import DAMAGE, as_count
from dptrace.readers.kineto.json_stream import BLANK, closing_bracket, count_brackets, find_list, is_list, values_of
from dptrace.readers.source import Source
from dptrace.readers.storage import file_identity
from dptrace.readers.stream import EventPiece

if TYPE_CHECKING:
    from concurrent.futures import Future


# The document around a file's list of events, and where the list and the document end.

_CLOSING_BYTES = 64 << 20
"""Maximum bytes decoded to find the closing bracket of the list; Kineto's files need few tries on little text."""
_TRY = 1000
"""Cost of a try besides its text, in bytes decoded."""


class _Document(msgspec.Struct, frozen=True):
    """The document's other keys; of any type, since many tools write such files."""

    base: Any = msgspec.field(default=None, name="baseTimeNanoseconds")
    """Base of the clock in ns."""
    distributed: Any = msgspec.field(default=None, name="distributedInfo")
    devices: Any = msgspec.field(default=None, name="deviceProperties")
    devices_2021: Any = msgspec.field(default=None, name="computeProperties")
    gloo_threads: Any = None
    """Ids of gloo's threads in order of creation, as dptrace's recorder lists them."""
    host_name: Any = None
    log: Any = msgspec.field(default=None, name="INFO")
    """Lines of Kineto's log, which some builds add to a file."""
    warnings: Any = msgspec.field(default=None, name="WARNING")


class Metadata(_Document, frozen=True):
    """These keys, and what was wrong with them."""

    damage: tuple[str, ...] = ()
    """What is damaged in the document around its events, a sentence each."""
    writers: str = ""
    """What shows that the file is of two processes, and what to do; empty for one."""


class DocumentEnd(msgspec.Struct, frozen=True):
    """Where a document and its list of events end."""

    end: int
    """Position of the bracket that closes the list."""
    closed: int
    """Position after the end of the document."""
    metadata: Metadata


def decode_document(head: bytes, tail: bytes) -> Metadata | None:
    """Decode the document around an emptied list of events; return None if it is not a document."""
    text = head + tail
    try:
        text.decode()  # the decoder does not look at keys that it skips: a damaged one hides its value
        if head == b"[":
            return Metadata() if msgspec.json.decode(text) == [] else None
        return Metadata(*astuple(msgspec.json.decode(text, type=_Document)))
    except DAMAGE:
        return None


def rank_of(metadata: _Document) -> int | None:
    """Return the rank in a document's metadata; None without one."""
    info = metadata.distributed
    return as_count(info.get("rank")) if isinstance(info, dict) else None


def recover_metadata(around: bytes) -> Metadata:
    """Return the metadata that can be found in a document that can't be decoded."""
    from dptrace.readers.kineto.repair import recover_metadata_fields

    base, document = recover_metadata_fields(around)
    rest = "only the clock's base and the rank were read" if base is not None or document else "it was not read"
    return Metadata(base, document, damage=(f"The document around the events can't be decoded; {rest}.",))


def end_of(head: bytes, text: bytes, last: int, sound: bool) -> DocumentEnd | None:
    """Find the bracket that closes the list of events; return None if the document is not closed.

    Args:
        last: where the last event starts, judged by the separator of events.
        sound: whether the text before it is known to be whole events.
    """
    found = _by_trial(head, text, last)
    if sound and found:
        return found
    # The last separator may have been within an event, or in the text after the list.
    counted = None if sound else _by_brackets(head, text, 0)
    if counted and not counted.metadata.damage and (counted.end < last or is_list(text[: counted.end])):
        return counted
    if found:
        return found
    near = _by_brackets(head, text, last)
    return near if near and not near.metadata.damage else _by_keys(head, text, last) or near or counted


def _by_trial(head: bytes, text: bytes, last: int) -> DocumentEnd | None:
    """Return the first bracket with whole events before it and a whole document around it.

    A bracket within a truncated event can fulfil only one of the two.
    """
    end, room = last - 1, _CLOSING_BYTES
    while room > 0 and (end := text.find(b"]", end + 1)) >= 0:
        metadata = decode_document(head, text[end:])
        if metadata is not None and is_list(text[last:end]):
            return DocumentEnd(end, len(text), metadata)
        room -= len(text) - last + _TRY
    return None


def _by_brackets(head: bytes, text: bytes, start: int) -> DocumentEnd | None:
    """Count brackets, which finds the ends of a list and a document that can't be decoded."""
    end = closing_bracket(text, start) - 1
    if end < start:
        return None
    closed = end + 1 if head == b"[" else closing_bracket(text, end + 1)
    if closed < 0:
        return None
    return DocumentEnd(
        end, closed, decode_document(head, text[end:closed]) or recover_metadata(head + text[end:closed])
    )


def _by_keys(head: bytes, text: bytes, last: int) -> DocumentEnd | None:
    """Return the bracket that Kineto's own keys follow: the last event is damaged, not the end of the file."""
    places = [found.start() for found in _CLOSED.finditer(text, last)]
    for end in places:
        if (metadata := decode_document(head, text[end:])) is not None:
            return DocumentEnd(end, len(text), metadata)
    if places and text.rstrip().endswith(b"}"):
        return DocumentEnd(places[0], len(text), recover_metadata(head + text[places[0] :]))
    return None


_CLOSED = re.compile(
    rb'\](?=\s{0,99},\s{0,99}"(?:traceName|displayTimeUnit|baseTimeNanoseconds|distributedInfo|deviceProperties)")'
)


def is_closed_list(head: bytes, text: bytes) -> bool:
    """Return whether a text is the whole events of a list and a sound document behind it."""
    counted = _by_brackets(head, text, 0)
    return counted is not None and not counted.metadata.damage and is_list(text[: counted.end])


class PieceDecoder:
    """Decodes the pieces of a file one after the other, in the order of the file; repairs or drops damaged events.

    A piece that is not whole events may be damaged, hold the end of a list of events and the beginning of the next one,
    or end within an event whose arguments hold objects that look like events. It is held until the next one shows
    which::

        {"ph": 1, "a": [{"ph": 2},      held
        {"ph": 3}]}, {"ph": 4}          together they are whole events
    """

    def __init__(self, columns: EventSink) -> None:
        self._columns = columns
        self._held: list[bytes] = []
        self._ends_open = False
        """Whether what is held ends within an event, or behind the list of events."""
        self._between = b""
        self._head = bytearray()
        """The document up to the list of events that is read."""
        self._metadata: Metadata | None = None
        """That of the first document, if it has ended."""
        self._lists = 1
        self._writers = ""

    def add(self, piece: EventPiece) -> None:
        """Decode a piece that is not the last."""
        text = piece.text
        self._head = self._head or bytearray(piece.head)
        if self._held and not self.waits and is_list(text):
            self.flush()
        if not self._held and decode_whole(text, piece.between, self._columns):
            return
        self._between = piece.between
        self._held.append(text)
        joined = b",".join(self._held)
        text = self._after_lists(joined)
        if decode_whole(text, piece.between, self._columns):
            self._held.clear()
            return
        found = count_brackets(text)
        is_behind_list = found.closed >= 0 and is_list(text[: found.closed])
        self._ends_open = found.is_within_event or is_behind_list
        limit = _MAX_HELD_BEHIND_LIST if is_behind_list else _MAX_HELD
        if found.last_end >= 0 and decode_whole(text[: found.last_end + 1], piece.between, self._columns):
            self._held = [text[found.last_end + 1 :].lstrip(BLANK)]
        elif len(text) < len(joined):
            self._held = [text]
        elif len(self._held) >= limit:
            self.flush()

    @property
    def waits(self) -> bool:
        """Whether the next piece, although it may be whole events, belongs to what is held."""
        return bool(self._held) and self._ends_open

    def flush(self) -> None:
        """Decode what is held as damaged events."""
        if self._held:
            text = b",".join(self._held)
            self._held.clear()
            self._add_stretch(text)

    def _add_stretch(self, text: bytes) -> None:
        """Decode the events of a text, and look for another file's header in one that is damaged."""
        if not add_stretch(text, self._between, self._columns):
            self._look_for_header(text)

    def _look_for_header(self, text: bytes) -> None:
        from dptrace.readers.kineto.repair import header_within, recover_metadata_fields

        first = recover_metadata_fields(bytes(self._head))[1].get("rank")
        if header_within(text, first if self._metadata is None else rank_of(self._metadata)):
            self._writers = (
                "two processes wrote it at once: it holds two headers of torch.profiler's, one among the other's "
                "events, which can't be told apart. Record again, with a file for each rank (its number in the name)."
            )

    def _after_lists(self, text: bytes) -> bytes:
        """Decode the lists that another list of events follows, in this document or in the next; return the rest."""
        at = 0
        while (end := count_brackets(text, at).closed) >= 0:
            second = find_list(text, end + 1, inside=self._head != b"[")
            if not isinstance(second, int):
                break
            self._add_stretch(text[at:end])
            self._begin_list(text[end:second])
            at = second
        return text[at:]

    def _begin_list(self, between: bytes) -> None:
        """Note that another list begins behind the text *between*, which begins with the end of the one before."""
        self._lists += 1
        closed = 1 if self._head == b"[" else closing_bracket(between[:-1], 1)
        if closed < 0:
            self._head += between
            return
        head, tail = bytes(self._head), between[:closed]
        if self._metadata is None:
            self._metadata = decode_document(head, tail) or recover_metadata(head + tail)
        else:
            self._compare(decode_document(head, tail))
        self._head = bytearray(between[closed:].lstrip(BLANK + b"\0"))

    def _compare(self, another: Metadata | None) -> None:
        """Note where a further document in the file is another rank's than the first."""
        ranks = [None if metadata is None else rank_of(metadata) for metadata in (self._metadata, another)]
        if None not in ranks and ranks[0] != ranks[1]:
            self._writers = (
                f"it holds two headers of torch.profiler's, of rank {ranks[0]} and of rank {ranks[1]}, whose files "
                "were joined. Write each to a file of its own."
            )

    def finish(self, piece: EventPiece) -> tuple[Metadata, str]:
        """Decode the last piece and the rest of the document; return the metadata, and why the text ends too early."""
        if not piece.head:
            self.flush()
            return self._finish_bare(piece)
        self._head, self._between = self._head or bytearray(piece.head), piece.between
        joined = b",".join([*self._held, piece.text])
        text = self._after_lists(joined)
        if self._held and len(text) == len(joined) and not is_closed_list(bytes(self._head), text):
            self.flush()
            text = piece.text
        self._held.clear()
        last = text.rfind(piece.between) + 1 if piece.between else 0
        sound = not last or take_events(text[:last].strip(BLANK), self._columns)
        found = end_of(bytes(self._head), text, last, sound)
        if found is not None:
            self._add_stretch(text[last if sound else 0 : found.end])
            self._compare(found.metadata)
            return self._whole(self._metadata or found.metadata, text[found.closed :], piece.damage), ""
        if not sound:
            self._add_stretch(text[:last])
        rest = text[last:].lstrip(BLANK)
        if not take_events(rest[: rest.rfind(b"}") + 1], self._columns):
            self._look_for_header(rest)
        metadata = self._metadata or decode_document(bytes(self._head), b"]}") or recover_metadata(bytes(self._head))
        return self._whole(metadata), piece.damage or "it ends in the middle"

    def _whole(self, metadata: Metadata, rest: bytes = b"", damage: str = "") -> Metadata:
        """Add what is said of the whole file to the metadata of its first document."""
        if metadata.damage:
            self._look_for_header(bytes(self._head))
        sentences = [f"Holds {self._lists:,} lists of events; they were read as one."] if self._lists > 1 else []
        if damage:
            sentences.append(f"After the end of the document {damage}; any part of the file may be damaged.")
        if rest := rest.strip(BLANK + b"\0"):
            sentences.append(f"{len(rest):,} bytes after the end of the document were not read.")
        return replace(metadata, damage=(*sentences, *metadata.damage), writers=self._writers)

    def _finish_bare(self, piece: EventPiece) -> tuple[Metadata, str]:
        """Decode the end of a file of bare events, one per line."""
        from dptrace.readers.kineto.repair import recover_metadata_fields

        text = piece.text.strip(BLANK)
        add_stretch(text, piece.between, self._columns)
        base, rank_info = recover_metadata_fields(text[text.rfind(piece.between) + 1 :] if piece.between else text)
        damage = "Is not a JSON document but a sequence of bare events; they were read."
        why = piece.damage or ("" if text.endswith((b"}", b"]")) else "it ends in the middle")
        return Metadata(base, rank_info, damage=(damage,)), why


_MAX_HELD = 8
"""Maximum pieces that are held: damage may hide the structure of all text behind it."""
_MAX_HELD_BEHIND_LIST = 64
"""The same where they are the rest of a document."""


def decode_whole(text: bytes, between: bytes, columns: EventSink) -> bool:
    """Decode whole events, some of which may have fields of odd types; return False, adding none, for other text."""
    events = text if b"," in between else _with_commas(text, between)
    if take_events(events, columns):
        return True
    values = values_of(events)
    if values is not None:
        _add_events(values, columns)
    return values is not None


def _is_text(events: bytes) -> bool:
    """Return whether a text is UTF-8; the decoder does not look at keys and values that it skips."""
    if events.isascii():
        return True
    try:
        events.decode()
    except UnicodeDecodeError:
        return False
    return True


def add_stretch(text: bytes, between: bytes, columns: EventSink) -> bool:
    """Decode the events of a text; drop damaged ones, and count them; return whether there was no damage."""
    text = text.strip(BLANK)
    if not text or decode_whole(text, between, columns):
        return True
    parts = text.split(between) if between else [text]
    opening, last = between[between.index(b"{") :] if between else b"", len(parts) - 1
    torn = [(opening if i else b"") + part + (b"}" if i < last else b"") for i, part in enumerate(parts)]
    _add_events(torn, columns)
    return False


def _with_commas(text: bytes, between: bytes) -> bytes:
    if b"\n" in between:
        return _LINES.sub(b"},{", text)
    return text.replace(between, b"}," + between[1:]) if between else text


_LINES = re.compile(rb"\}[ \t\r]*\n\s*\{")
"""Where a line ends with one event and the next begins with another; no JSON string holds a line break."""


def _add_events(events: list[bytes], columns: EventSink) -> None:
    """Decode damaged events by bisection, so that one in a million costs little."""
    if len(events) == 1:
        _repair_events(events[0], columns)
        return
    middle = len(events) // 2
    for half in (events[:middle], events[middle:]):
        if not take_events(b",".join(half), columns):
            _add_events(half, columns)


def take_events(events: bytes, columns: EventSink) -> bool:
    """Decode events separated by commas; return False, without adding any, if they are damaged."""
    if not _is_text(events):
        return False
    try:
        columns.decode(b"".join((b"[", events, b"]")))  # one copy, where two additions would copy twice
    except DAMAGE:
        return False
    return True


def _repair_events(text: bytes, columns: EventSink) -> None:
    """Decode a damaged event, or several that run together; drop and count what would need a guess."""
    # Compiling its patterns takes milliseconds of each start, and few files are damaged.
    from dptrace.readers.kineto.repair import clean, last_values, split_events

    text = text.strip(BLANK)
    if take_events(last_values(text), columns):
        return
    if not text or take_events(clean(text), columns):
        columns.repaired += 1
    elif len(parts := split_events(text)) > 1:
        columns.repaired += 1
        for part in parts:
            if not take_events(part, columns):
                _repair_events(part, columns)
    else:
        columns.dropped += 1


# Decoding of a huge file on several cores: this process splits its text into pieces, others turn them into columns.
#
# ::
#
#     this process    gunzip, split ─► pieces               columns joined, in the order of the file
#                                         │                            ▲
#     the others                          └──► decode, reduce to arrays ┘

_MIN_TEXT_BYTES = 400 << 20
"""Bytes of text from which several processes pay off: one process decodes half of it while they start."""
_GZIP_RATIO = 14
"""Approximate compression ratio of a gzipped trace."""
_MAX_PROCESSES = 6
"""Number of processes that decode as fast as one decompresses and splits."""
_PIECES_PER_PROCESS = 3
"""Pieces queued per process, so that the next is ready when one is done."""


def is_worthwhile(source: Source, jobs: int) -> bool:
    """Return whether *jobs* processes would read the file faster; False for a pipe, whose size is unknown."""
    identity = file_identity(source) if jobs > 1 and hasattr(os, "fork") else None
    size = identity[1] if identity is not None else 0
    assert isinstance(size, int)
    return size * (_GZIP_RATIO if source.name.endswith(".gz") else 1) >= _MIN_TEXT_BYTES


class ParallelDecoder:
    """Processes that decode pieces of one file; a context manager that ends them."""

    def __init__(self, source: Source, columns: Columns, jobs: int) -> None:
        self.source, self.columns = source, columns
        self.serial = PieceDecoder(columns)
        """Decodes the pieces that are not whole events, in this process."""
        self.count = max(1, min(jobs, _MAX_PROCESSES))
        self.workers: list[_DecoderProcess] = []
        self.sent = 0
        self.pending: deque[tuple[_DecoderProcess, Future[object], EventPiece]] = deque()
        """The pieces whose columns are not joined yet, in the order of the file."""

    def __enter__(self) -> ParallelDecoder:
        try:
            for _ in range(self.count):
                self.workers.append(_DecoderProcess())
        except BaseException as error:
            self.__exit__()
            if isinstance(error, OSError):
                raise DptraceError(f"can't start another process: {error}; use --jobs 1.") from None
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.stop()

    def add(self, piece: EventPiece) -> None:
        """Queue a piece; pieces come in the order of the file."""
        worker = self.workers[self.sent % self.count]
        self.sent += 1
        self.pending.append((worker, worker.thread.submit(worker.ask, (piece.text, piece.between)), piece))
        if len(self.pending) > _PIECES_PER_PROCESS * self.count:
            self._join()

    def finish(self) -> None:
        """Wait until all pieces are decoded."""
        while self.pending:
            self._join()

    def _join(self) -> None:
        """Append the columns of the next piece."""
        worker, future, piece = self.pending.popleft()
        try:
            part = future.result()
        except (EOFError, OSError):
            code = worker.process.wait()
            why = f"was killed by signal {-code} (out of memory?)" if code < 0 else f"ended with exit code {code}"
        else:
            if part is None:
                self.serial.add(piece)
                return
            if isinstance(part, DecodedPart) and self.serial.waits:
                self.columns.add(DecodedPart(names=part.names, threads=part.threads), worker.ids)
                self.serial.add(piece)
                return
            if isinstance(part, DecodedPart):
                self.serial.flush()
                self.columns.add(part, worker.ids)
                return
            why = f"failed ({part!r})"
        raise DptraceError(f"{self.source.address}: a process that read a part of it {why}; try --jobs 1.")


class _DecoderProcess(PythonProcess):
    """One process, and the thread that sends it pieces and receives their columns."""

    def __init__(self) -> None:
        from concurrent.futures import ThreadPoolExecutor  # few files are huge

        super().__init__("dptrace.readers.kineto.decode:serve_pieces")
        self.thread = ThreadPoolExecutor(1)
        self.ids = IdMap()

    def ask(self, piece: tuple[bytes, bytes]) -> object:
        """Return the columns of a piece, or the error that decoding it raised."""
        self.connection.send(piece)
        return self.connection.recv()

    def stop(self) -> None:
        """End the process, whatever it is doing, and the thread with it."""
        self.process.kill()
        self.thread.shutdown(cancel_futures=True)
        super().stop()


def serve_pieces(connection: int) -> None:
    """Receive pieces and send their columns, until the parent process has gone."""
    columns = Columns()

    def decode(piece: tuple[bytes, bytes]) -> DecodedPart | None:
        return columns.part() if decode_whole(*piece, columns) else None

    serve(connection, decode)
