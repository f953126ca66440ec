"""Read dumps: those of torch's flight recorder, one for each rank, and the JSON of NCCL's RAS and Inspector.

Formats: torch/csrc/distributed/c10d/FlightRecorderDetail.hpp (2.10, of torch 2.13, and earlier); NCCL's user guide on
RAS and src/ras/client_support.cc (from NCCL 2.28.7 on); plugins/profiler/inspector/README.md of NCCL (v4.0).
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any
from zipfile import BadZipFile, ZipFile

import msgspec

from dptrace.core.checks import objects
from dptrace.core.files import note_inputs, unreadable
from dptrace.core.units import byte_size, sanitize
from dptrace.errors import TraceError
from dptrace.flight.plain_pickle import DamagedPickleError, RefusedPickleError, load_plain
from dptrace.record.failures import group_and_name

MAX_BYTES = 64 << 20
"""Size of a dump that is read; the 2,000 entries that torch keeps by default take 1 MB with their stacks."""
MAX_FRAMES = 100
_MAX_TEXT = 300
"""Characters of a text from a dump."""
_MAX_DEPTH = 3
"""Folders of folders that are searched for dumps; those below a folder with dumps are not."""
_GLOO_OVER = "over"
_SUFFIXES = ("", ".json", ".pickle", ".pkl", ".jsonl", ".log")
_RANK = re.compile(r"rank[-_ ]?(\d+)|(\d+)\D*$", re.IGNORECASE)
"""The number of a rank: it may be followed by a time, as with TORCH_FR_DUMP_DYNAMIC_FILE_NAME."""
_PEERS = re.compile(r"(\w+) (\d+)(->|<-)(\d+)$")

Frame = tuple[str, int, str]
"""File, line and function."""


@dataclass(slots=True)
class Call:
    """A collective, a send or a receive that a rank has begun."""

    group: str
    number: int
    operator: str
    input_sizes: tuple[tuple[int, ...], ...]
    output_sizes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    state: str
    """``scheduled``, ``started`` or ``completed``; of gloo ``begun``, ``completed``, ``ended`` (one way or another)."""
    created_ns: int | None
    order: int
    """Its place among all calls of the rank."""
    is_p2p: bool
    frames: Any

    @property
    def is_over(self) -> bool:
        """Whether the rank does not wait in it."""
        return self.state in ("completed", "ended")

    @property
    def stack(self) -> list[Frame]:
        """Where it was called, the most recent call first; empty in JSON, which has no stacks."""
        frames = self.frames if isinstance(self.frames, list) else []
        return [
            (_text(frame.get("filename")), _whole(frame.get("line")) or 0, _text(frame.get("name")))
            for frame in frames[:MAX_FRAMES]
            if isinstance(frame, dict)
        ]


@dataclass(frozen=True, slots=True)
class Progress:
    """Numbers of the last collectives of a group that a rank has begun and completed; 0 for none."""

    begun: int
    completed: int


@dataclass(slots=True)
class Dump:
    """The calls of a rank, as far back as its recorder kept them."""

    rank: int
    path: Path
    calls: list[Call]
    members: dict[str, tuple[int, ...]]
    """The ranks of each group that the dump lists."""
    progress: dict[str, Progress] = field(default_factory=dict)
    """Of each group whose collectives the dump counts beside its entries (``pg_status``)."""
    ids: dict[str, int] = field(default_factory=dict)
    """The number by which ``pg_status`` knows a group."""
    others: dict[int, Progress] = field(default_factory=dict)
    """Of groups by that number, where no entry tells their name."""
    is_cut: bool = False
    """Whether the entries are consecutive and do not begin with the rank's first."""
    is_whole: bool = False
    """Whether the entries are known to be all that the rank has begun."""
    has_gaps: bool = False
    """Whether entries between others were left out, as completed ones are by ``onlyActive``."""


@dataclass(slots=True)
class Counts:
    """How many collectives of each operator the ranks of a communicator have begun or completed."""

    group: str
    counts: dict[str, dict[int, int]] = field(default_factory=dict)
    """By operator and rank."""
    ranks: dict[int, str] = field(default_factory=dict)
    """Where each rank runs."""
    silent: dict[int, str] = field(default_factory=dict)
    """Ranks that did not answer, and what is known of them."""


@dataclass(slots=True)
class Dumps:
    """What was read: dumps of ranks, or counts of one of NCCL's tools."""

    source: str
    """``flight recorder``, ``NCCL RAS`` or ``NCCL Inspector``."""
    ranks: list[Dump] = field(default_factory=list)
    communicators: dict[str, Counts] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    damaged: set[int] = field(default_factory=set)
    """Ranks whose dump can't be read."""


def read_dumps(paths: Sequence[str | Path]) -> Dumps:
    """Read dumps: files, folders or zip files of them, which may lie in a folder for each machine.

    Raises:
        TraceError: a path does not exist, no file is a dump, two are of one rank, or a pickle has more than plain data.
    """
    files = {path: is_named for given in paths for path, is_named in _files(Path(given))}
    note_inputs([*paths, *files])
    found, broken, damaged = _readable(files)
    if not found:
        none = f"{', '.join(map(str, paths))}: holds no dump: a file for each rank, such as nccl_trace_rank_0."
        raise TraceError("\n".join(broken) or none)
    source, *others = sorted({_source(content[0]) for _, content in found})
    if others:
        raise TraceError(f"{found[0][0].parent}: holds dumps of {' and '.join((source, *others))}; give those of one.")
    dumps = Dumps(source, notes=[f"{text} Its rank counts as one without a dump." for text in broken], damaged=damaged)
    ranks: dict[int, Dump] = {}
    for path, content in found:
        try:
            if source == "flight recorder":
                _add_rank(path, content[0], ranks)
            elif source == "NCCL RAS":
                _read_ras(content[0], dumps.communicators)
            else:
                _read_inspector(content, dumps.communicators)
        except (AttributeError, TypeError, ValueError, RecursionError):
            raise TraceError(f"{path}: its entries are not those of the {source}; was it edited?") from None
    dumps.ranks = _with_groups_apart([ranks[rank] for rank in sorted(ranks)])
    _name_idle_groups(dumps.ranks)
    return dumps


def _readable(files: Mapping[Path, bool]) -> tuple[list[tuple[Path, list[dict[str, Any]]]], list[str], set[int]]:
    """Return what the files hold, a sentence on each that is no dump, and the ranks of these.

    Args:
        files: and whether each was named: a file of a folder is passed over unless its name has a rank.
    """
    found, broken, damaged = list[tuple[Path, list[dict[str, Any]]]](), list[str](), set[int]()
    for path, is_named in files.items():
        try:
            found.append((path, _contents(path)))
        except _NotADumpError as error:
            rank = _rank_in(path)
            if is_named or rank is not None:
                broken.append(f"{path}: {error}")
            if rank is not None:
                damaged.add(rank)
    return found, broken, damaged


class _NotADumpError(Exception):
    """The file is no dump, or damaged; the message is a sentence."""


def _files(given: Path, depth: int = _MAX_DEPTH) -> Iterator[tuple[Path, bool]]:
    try:
        if not given.is_dir():
            yield from ((path, False) for path in _members(given)) if _is_zip(given) else [(given, True)]
            return
        paths = [path for path in sorted(given.iterdir()) if path.name[0] != "."]
        files = [path for path in paths if path.is_file()]
        for path in files:
            if path.suffix in _SUFFIXES or path.suffix[1:].isdigit():
                yield path, False
        if depth and not any(_is_dump(path) for path in files):
            for path in paths:
                if path.is_dir() or _is_zip(path):
                    yield from _files(path, depth - 1)
    except OSError as error:
        raise TraceError(unreadable(given, error)) from None
    except BadZipFile as error:
        raise TraceError(f"{given}: can't be read as a zip file ({error}); was it copied completely?") from None


def _is_dump(path: Path) -> bool:
    """Return whether a file is a dump by its name."""
    known = path.suffix in _SUFFIXES or path.suffix[1:].isdigit()
    return known and _rank_in(path) is not None


def _is_zip(path: Path) -> bool:
    return path.suffix.lower() == ".zip" and path.is_file()


def _members(archive: Path) -> list[Path]:
    """Return the dumps in a zip file, as paths below it: those at its highest level that has any."""
    with ZipFile(archive) as content:
        names = [PurePosixPath(info.filename) for info in content.infolist() if not info.is_dir()]
    shown = [name for name in names if not any(part.startswith((".", "__MACOSX")) for part in name.parts)]
    dumps = [name for name in shown if _is_dump(Path(name))]
    highest = min((len(name.parts) for name in dumps), default=0)
    return [archive / name for name in sorted(dumps) if len(name.parts) == highest]


def _bytes(path: Path) -> bytes:
    """Return what a file holds, or a member of a zip file.

    Raises:
        OSError: it can't be read.
        _NotADumpError: it is larger than a dump may be, or damaged in its zip file.
    """
    archive = next((above for above in path.parents if _is_zip(above)), None)
    if archive is None:
        size = path.stat().st_size
        if size <= MAX_BYTES:
            return path.read_bytes()
    else:
        name = path.relative_to(archive).as_posix()
        try:
            with ZipFile(archive) as content:
                size = content.getinfo(name).file_size
                if size <= MAX_BYTES:
                    return content.read(name)
        except (BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
            raise _NotADumpError(f"can't be unpacked ({error}).") from None
    raise _NotADumpError(f"{byte_size(size)} are more than the {byte_size(MAX_BYTES)} that a dump may have.")


def _contents(path: Path) -> list[dict[str, Any]]:
    """Return the objects in a file: one, or of the Inspector one a line."""
    try:
        data = _bytes(path)
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file.") from None
    except (OSError, ValueError) as error:
        raise TraceError(unreadable(path, error)) from None
    if not data.strip():
        raise _NotADumpError("is empty: the rank ended before it had written its dump.")
    try:
        content = _json(data) if data.lstrip()[:1] == b"{" else [load_plain(data)] if data[:1] == b"\x80" else []
    except RefusedPickleError as refused:
        raise TraceError(
            f"{path}: refused, and nothing in it was executed: the pickle {refused}. A dump holds plain data "
            "only; do not open this file with other tools."
        ) from None
    except (DamagedPickleError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _NotADumpError("is truncated or damaged: the rank may have ended while it wrote its dump.") from None
    if not content or not all(isinstance(part, dict) and _source(part) for part in content):
        raise _NotADumpError("is no dump of torch's flight recorder, of NCCL's RAS or of its Inspector.")
    return content


def _json(data: bytes) -> list[Any]:
    try:
        return [msgspec.json.decode(data)]
    except msgspec.DecodeError:
        lines = data.splitlines()
        if len(lines) < 2 or b'"coll_perf"' not in data:
            raise
        # The last line may be cut: the job has been ended.
        complete = lines if data.endswith(b"\n") else lines[:-1]
        return [msgspec.json.decode(line) for line in complete if line.strip()]


def _source(content: Mapping[str, Any]) -> str:
    if isinstance(content.get("communicators"), list):
        return "NCCL RAS"
    if isinstance(content.get("header"), dict):
        return "NCCL Inspector"
    # Without a collective, torch's JSON has no entries.
    return "flight recorder" if isinstance(content.get("entries", content.get("pg_config")), list | dict) else ""


def _rank_in(path: Path) -> int | None:
    found = _RANK.search(path.stem if path.suffix in _SUFFIXES else path.name)
    digits = "" if found is None else found[1] or found[2]
    return int(digits) if 0 < len(digits) < 7 else None


def _add_rank(path: Path, content: Mapping[str, Any], dumps: dict[int, Dump]) -> None:
    rank = _rank_in(path)
    if rank is None:
        raise TraceError(f"{path}: the name must end in the rank, which a dump does not hold: nccl_trace_rank_0.")
    if rank in dumps:
        raise TraceError(f"{path}: a second dump of rank {rank}, after {dumps[rank].path}; give one of each rank.")
    dumps[rank] = _dump(rank, path, content)


def _dump(rank: int, path: Path, content: Mapping[str, Any]) -> Dump:
    config = content.get("pg_config")
    members = {}
    for group in config.values() if isinstance(config, dict) else ():
        if isinstance(group, dict) and (ranks := tuple(sorted({int(n) for n in _numbers(group.get("ranks"))}))):
            named, _ = group_and_name({"process_group": (group.get("name", ""), group.get("desc", ""))})
            members[_text(named.strip())] = ranks
    entries = content.get("entries")
    if not all({"profiling_name", "state"} <= entry.keys() for entry in entries or ()):
        raise ValueError
    calls = [_call(entry, order) for order, entry in enumerate(entries or ())]
    # Of calls that are one to NCCL, torch records the progress in the entry that ends them alone.
    ends = {_place(call): call.state for call in calls if call.operator.endswith("coalesced")}
    for call in calls:
        call.state = ends.get(_place(call), call.state)
    # gloo marks what failed as it marks what completed; a rank goes on after a success only.
    for call in {call.group: call for call in calls}.values():
        call.state = "ended" if call.state == _GLOO_OVER else call.state
    for call in calls:
        call.state = "completed" if call.state == _GLOO_OVER else call.state
    dump = Dump(rank, path, calls, members)
    ids = [_whole(entry.get("record_id")) for entry in entries or ()]
    if ids and None not in ids:
        first = ids[0] or 0
        dump.has_gaps = ids != [*range(first, first + len(ids))]
        dump.is_cut = first > 0 and not dump.has_gaps
        firsts = {(call.group, call.is_p2p): call.number for call in reversed(calls)}
        dump.is_whole = first == 0 and not dump.has_gaps and max(firsts.values()) <= 1
    dump.is_whole |= not calls
    _add_progress(dump, content.get("pg_status"), entries or ())
    return dump


def _add_progress(dump: Dump, status: object, entries: Sequence[Mapping[str, Any]]) -> None:
    """Read what the rank counts of each group.

    torch counts the messages of a group in the same place, and gloo counts what failed as completed.
    """
    found = {}
    for key, counts in status.items() if isinstance(status, dict) else ():
        numbers = _numbers([str(key)])
        if numbers and isinstance(counts, dict):
            begun, completed = (_count(counts.get(f"last_{which}_collective")) for which in ("enqueued", "completed"))
            found[int(numbers[0])] = Progress(begun, completed)
    lasts: dict[str, Call] = {}
    unlike = set[str]()
    for call, entry in zip(dump.calls, entries, strict=True):
        lasts[call.group] = call
        if (number := _whole(entry.get("pg_id"))) is not None:
            dump.ids[call.group] = number
        if call.is_p2p or str(entry.get("profiling_name", "")).startswith("gloo:"):
            unlike.add(call.group)
    for group, number in dump.ids.items():
        one = found.get(number)
        if one is not None and group not in unlike and lasts[group].number == one.begun:
            dump.progress[group] = one
    for call in dump.calls:
        one = None if call.is_p2p else dump.progress.get(call.group)
        if one is not None and call.number <= one.completed:
            call.state = "completed"
    named = {*dump.ids.values()}
    dump.others = {number: one for number, one in found.items() if number not in named}


def _name_idle_groups(dumps: Sequence[Dump]) -> None:
    """Find the counts of groups in which a rank has no open call, where the dumps hold open calls only.

    Such a rank's entries do not name the group; the other ranks' do, if they know it by one number.
    """
    by_group: dict[str, set[int]] = {}
    for dump in dumps:
        for group in dump.progress:
            by_group.setdefault(group, set()).add(dump.ids[group])
    for dump in dumps:
        for group in dump.members.keys() & by_group.keys() - dump.ids.keys():
            numbers = by_group[group]
            one = dump.others.get(next(iter(numbers))) if len(numbers) == 1 else None
            if one is not None and one.begun == one.completed:
                dump.progress[group] = one


def _place(call: Call) -> tuple[str, bool, int]:
    return call.group, call.is_p2p, call.number


def _call(entry: Mapping[str, Any], order: int) -> Call:
    group, operator = map(_text, group_and_name(entry))
    is_p2p = bool(entry.get("is_p2p"))
    state = _text(entry.get("state"))
    if str(entry.get("profiling_name", "")).startswith("gloo:"):
        state = _GLOO_OVER if entry.get("retired") else "begun"
    number = _whole(entry.get("p2p_seq_id" if is_p2p else "collective_seq_id", 0))
    if number is None:
        raise ValueError
    inputs, outputs = (_texts(entry.get(f"{which}_dtypes")) for which in ("input", "output"))
    return Call(
        group,
        number,
        operator,
        _sizes(entry.get("input_sizes")),
        _sizes(entry.get("output_sizes")),
        tuple(dict.fromkeys((*inputs, *outputs))),
        state,
        _whole(entry.get("time_created_ns")),
        order,
        is_p2p,
        entry.get("frames"),
    )


def _with_groups_apart(dumps: list[Dump]) -> list[Dump]:
    """Add its ranks to the name of a group that other ranks use for another one, as ``split_group`` allows."""
    by_name: dict[str, set[tuple[int, ...]]] = {}
    for dump in dumps:
        for name, ranks in dump.members.items():
            by_name.setdefault(name, set()).add(ranks)
    shared = {name for name, several in by_name.items() if len(several) > 1 and name}
    for dump in dumps:
        new = {name: f"{name} {list(dump.members[name])}" for name in shared & dump.members.keys()}
        dump.members = {new.get(name, name): ranks for name, ranks in dump.members.items()}
        dump.progress = {new.get(name, name): progress for name, progress in dump.progress.items()}
        dump.ids = {new.get(name, name): number for name, number in dump.ids.items()}
        for call in dump.calls if new else ():
            call.group = new.get(call.group, call.group)
    return dumps


def peers(call: Call, members: Sequence[int]) -> tuple[int, int] | None:
    """Return who sends to whom, of a send or a receive: ``recv 1<-0`` counts ranks within the group."""
    if not (found := _PEERS.match(call.operator)):
        return None
    first, second = (int(number) for number in found.group(2, 4))
    if max(first, second) < len(members):
        first, second = members[first], members[second]
    return (first, second) if found[3] == "->" else (second, first)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 63 else None


def _count(value: object) -> int:
    """Return a count, which JSON has as text; torch's −1 is none."""
    return max(_whole(int(value) if isinstance(value, str) and value.isascii() and value.isdigit() else value) or 0, 0)


def _numbers(ranks: object) -> list[str]:
    """Return the numbers of ``"[0, 1]"``, as torch writes ranks, or of a list."""
    return re.findall(r"\b\d{1,6}\b", ranks if isinstance(ranks, str) else " ".join(_texts(ranks)))


def _texts(values: object) -> list[str]:
    return [_text(value) for value in values] if isinstance(values, list | tuple) else []


def _text(value: object) -> str:
    return sanitize(str(value)[:_MAX_TEXT]) if isinstance(value, str | int) else "?"


def _sizes(tensors: object) -> tuple[tuple[int, ...], ...]:
    if not isinstance(tensors, list | tuple):
        return ()
    lists = (tensor[:16] for tensor in tensors if isinstance(tensor, list | tuple))
    return tuple(tuple(size for size in tensor if _whole(size) is not None) for tensor in lists)


def _read_ras(content: Mapping[str, Any], found: dict[str, Counts]) -> None:
    for one in objects(content["communicators"]):
        group = " ".join(_texts([one.get("hash", "?"), one.get("secondary_hash", "")])).strip()
        counts = found.setdefault(group, Counts(group))
        for rank in objects(one.get("ranks")):
            counts.ranks[_whole(rank.get("rank")) or 0] = _host(rank)
            calls = rank.get("collective_counts")
            for operator, number in calls.items() if isinstance(calls, dict) else ():
                counts.counts.setdefault(_text(operator), {})[_whole(rank.get("rank")) or 0] = _whole(number) or 0
        for rank in objects(one.get("missing_ranks")):
            status = next(iter(objects([rank.get("status")])), {})
            flags = (("considered_dead", "is considered dead"), ("unresponsive", "does not respond"))
            state = next((words for flag, words in flags if status.get(flag)), "has not answered")
            counts.silent[_whole(rank.get("rank")) or 0] = f"{state} ({_host(rank)})"


def _host(rank: Mapping[str, Any]) -> str:
    return f"{_text(rank.get('host'))}, process {_whole(rank.get('pid'))}"


def _read_inspector(content: Sequence[Mapping[str, Any]], found: dict[str, Counts]) -> None:
    for line in content:
        header, done, about = line.get("header"), line.get("coll_perf"), line.get("metadata")
        if not isinstance(header, dict) or not isinstance(done, dict):
            continue
        group, rank = _text(header.get("id")), _whole(header.get("rank")) or 0
        counts = found.setdefault(group, Counts(group))
        place = about if isinstance(about, dict) else {}
        counts.ranks[rank] = _host({"host": place.get("hostname"), "pid": place.get("pid")})
        by_rank = counts.counts.setdefault(_text(done.get("coll")), {})
        by_rank[rank] = max(by_rank.get(rank, 0), _whole(done.get("coll_sn")) or 0)
