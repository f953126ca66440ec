"""Open a run: find its files, read them, sort them by rank, and collect the notes on them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import msgspec

from dptrace.analysis.per_gpu.device import DeviceFigures
from dptrace.core.array_file import CorruptArrayFile
from dptrace.core.checks import rank_entries
from dptrace.core.intervals import unique
from dptrace.core.notes import GPU_EVENTS, Note, merged
from dptrace.core.patterns import matches
from dptrace.core.subprocess_pool import available_cores, available_memory, run_parallel
from dptrace.core.units import byte_size, listed, plural, sanitize
from dptrace.errors import DptraceError, SeveralRanksError, TraceError
from dptrace.load import rank_file
from dptrace.load.answers import StoredAnswers, identities_of
from dptrace.load.joined_windows import joined_windows, window_notes
from dptrace.load.options import ReadOptions
from dptrace.load.rank_file import FileRereader, cached_rank_file, is_cached, load_rank_file
from dptrace.load.spoiled import has_whole_steps, only_whole_steps, spoiling, without_ignored, without_ignored_files
from dptrace.load.stored_file import RankFile, SharedValues, StoredFile
from dptrace.load.windows import with_window
from dptrace.readers.communication import communication_names
from dptrace.readers.discovery import Sources, find
from dptrace.readers.source import Source, file_name, rank_in_name, redact
from dptrace.readers.storage import container, file_identity
from dptrace.run.run import Run
from dptrace.timeline.host_calls import OPERATOR_CALLS
from dptrace.timeline.model import Timeline
from dptrace.timeline.phase_labels import read_rules

# Read all files of a run in parallel, from the cache where possible, on this machine's cores or a Dask cluster.

_BYTES_PER_PROCESS = 2 << 20
"""Compressed bytes that take about as long to read as another process takes to start."""


def read_files(sources: Sequence[Source], read_options: ReadOptions) -> Iterator[tuple[int, RankFile | DptraceError]]:
    """Read the files; return each file's index with its figures or its error, as they arrive.

    Raises:
        DptraceError: reading failed for a reason outside the files, such as an unreachable Dask cluster.
    """
    if read_options.dask is not None and read_options.operators:
        read_options = replace(read_options, prefetch=(*read_options.prefetch, OPERATOR_CALLS))
    # To read an entry of the cache takes less time than to send it from another process.
    cached = [index for index, source in enumerate(sources) if is_cached(source, read_options)]
    rest = sorted({*range(len(sources))} - {*cached})
    read = partial(load_rank_file, read_options=read_options)
    uncached = [sources[index] for index in rest]
    results: Iterable[tuple[int, RankFile | DptraceError]]
    if rest and read_options.dask is not None:
        from dptrace.load.dask import read_on_cluster

        results = ((rest[place], result) for place, result in read_on_cluster(uncached, read_options))
    # Only this process can read a pipe.
    elif any(source.single_pass for source in uncached) or (jobs := read_options.jobs or _process_count(uncached)) == 1:
        results = zip(rest, map(read, uncached), strict=True)
    elif len(rest) == 1:
        results = zip(rest, map(partial(read, jobs=jobs), uncached), strict=True)
    else:
        results = ((rest[place], result) for place, result in _read_in_processes(uncached, read_options, jobs))
    return chain(zip(cached, map(read, [sources[index] for index in cached]), strict=True), results)


def _read_in_processes(
    sources: Sequence[Source], read_options: ReadOptions, jobs: int
) -> Iterator[tuple[int, RankFile | DptraceError]]:
    from tempfile import TemporaryDirectory  # a run of one file needs none

    # Figures are small enough to be sent; arrays go through a folder.
    arrays = not read_options.figures_only
    with TemporaryDirectory(prefix="dptrace.", ignore_cleanup_errors=True) if arrays else nullcontext("") as folder:
        read = partial(_read, read_options=read_options, folder=folder, parent_pid=os.getpid())
        for index, answer in run_parallel(read, sources, jobs):
            if isinstance(answer, Path):
                yield index, _map_result(answer, sources[index], read_options, folder)
            else:
                yield index, answer


def _map_result(entry: Path, source: Source, read_options: ReadOptions, folder: str) -> RankFile | DptraceError:
    """Map the arrays that another process wrote."""
    try:
        file = rank_file.read(entry, StoredFile).whole().with_path(source.address)
        further = {}
        for reading in (OPERATOR_CALLS, *read_options.prefetch):
            if (path := _beside(entry, reading.name, folder)).exists():
                further[reading.name] = rank_file.read(path, reading.type)
        return msgspec.structs.replace(file, further=further)
    except (OSError, CorruptArrayFile):  # the disk was full, or the cache was cleared meanwhile
        return load_rank_file(source, replace(read_options, cache=False))


def _beside(entry: Path, reading: str, folder: str) -> Path:
    """Return where a process writes what else it read of a file that has this entry, and could not store."""
    return Path(folder, f"{entry.name}-{reading}")


def _process_count(sources: Sequence[Source]) -> int:
    """Return the number of processes that reading benefits from."""
    if len(sources) == 1:
        return available_cores()
    size = sum(_weight(source) for source in sources)
    return max(1, min(available_cores(), len(sources), size // _BYTES_PER_PROCESS))


def _weight(source: Source) -> int:
    identity = file_identity(source)
    size = identity[1] if identity else _BYTES_PER_PROCESS
    assert isinstance(size, int)
    return size if source.whole().name.endswith(".gz") else size // 12


def _read(source: Source, read_options: ReadOptions, folder: str, parent_pid: int) -> RankFile | DptraceError | Path:
    """Read one file; in another process than the parent, write the arrays to a file that the parent maps."""
    file = load_rank_file(source, read_options)
    if read_options.figures_only or os.getpid() == parent_pid or isinstance(file, DptraceError):
        return file
    entry = cached_rank_file(source, read_options)
    if entry is None:
        entry = Path(folder, uuid4().hex)
        rank_file.write(StoredFile.of(file), entry)
    for name, result in file.further.items():
        rank_file.write(result, _beside(entry, name, folder))
    return entry


Progress = Callable[[int, int, str], None]


def open_run(
    paths: Sequence[str],
    read_options: ReadOptions | None = None,
    progress: Progress = lambda done, count, name: None,
    sources: Sources | None = None,
) -> Run:
    """Read a run; see :func:`dptrace.open`.

    Args:
        progress: called before the first file and after each one, with the number of files done, the number of all
            files, and the name of the file just read (before the first: of the first).
        sources: the files that *paths* name, where they are known.
    """
    read_options = read_options or ReadOptions()
    # Report an invalid pattern before a long read.
    communication_names((), read_options.comm_patterns)
    read_rules(read_options.phase_labels)
    results, share = dict[int, RankFile | DptraceError](), SharedValues()
    sources = with_window(without_ignored(sources or find(paths), read_options.ignore), read_options.window)
    if sources.windows:  # what else is read of a rank is read of all its windows
        read_options = replace(read_options, prefetch=(), operators=False)
    found, keeps = sources.files, read_options.cache and not read_options.figures_only
    identities = identities_of(found) if keeps else (None,)
    progress(0, len(sources.files), sources.files[0].name)
    # Files that turn out to hold several ranks are read again, one rank at a time.
    while unread := [index for index in range(len(sources.files)) if index not in results]:
        for place, result in read_files([sources.files[index] for index in unread], read_options):
            index = unread[place]
            if isinstance(result, DptraceError):
                raise_if_required(sources, index, result, read_options.strict)
                results[index] = result
            else:
                results[index] = share(result)
            progress(len(results), len(sources.files), sources.files[index].name)
        sources, results = split_ranks(sources, results)
    sources, results = without_ignored_files(sources, results, read_options.ignore)
    run = _joined(sources, results, " ".join(map(redact, paths)), read_options)
    return (
        run if None in identities else replace(run, answers=StoredAnswers(found, identities, read_options, run.devices))
    )


def _joined(sources: Sources, results: dict[int, RankFile | DptraceError], name: str, read_options: ReadOptions) -> Run:
    """Return the run of what was read of its files."""
    _leave_out_cpus(sources, results, read_options.strict)
    _leave_out_incomplete(sources, results, read_options.strict)
    files, left_out = collect_results(sources, results)
    ranks, guesses = _ranks_by_window(sources, files) if sources.windows else _ranks_of(files)
    pairs = sorted(zip(ranks, files, strict=True), key=lambda pair: pair[0])
    whole = [only_whole_steps(file) for _, file in pairs]
    copies = _copies(files)
    left = {path for path, _ in copies} if sources.windows else set[str]()
    kept = [(pair, own) for pair, (own, _) in zip(pairs, whole, strict=True) if pair[1].path not in left]
    devices = tuple(device.with_rank(rank) for (rank, _), own in kept for device in own)
    parts = dict[str, tuple[str, ...]]()
    if sources.windows:
        devices, parts = joined_windows(devices)
    devices = _drop_unfinished_steps(devices, sources.metadata)
    world_size = max([file.world_size for file in files] + [max(ranks) + 1])
    contradictions = _contradictions(ranks, [file.world_size for file in files])
    # Damage first: it affects every figure.
    notes = [*spoiling(ranks, files), *(damage for file in files for damage in file.damage)]
    notes += [note for _, left in whole for note in left]
    notes += [Note("is a copy of {}; a copy is no further rank: leave it out.", (of,), copy) for copy, of in copies]
    notes += map(Note, (*left_out, *contradictions, *_recorder_notes(sources.metadata)))
    if sources.windows:
        notes += map(Note, window_notes(len(sources.windows), devices))
    notes += guesses
    # Files of several jobs have no ranks that are missing from the job.
    notes += [] if contradictions else map(Note, _missing(ranks, world_size))
    timelines = tuple(device.timeline for device in devices)
    notes += [note for timeline in timelines for note in timeline.notes]
    notes += map(Note, (*_no_gpu_work(timelines), *_unmatched_patterns(timelines, read_options.comm_patterns)))
    # What was read together with the figures, as the rereader holds it.
    further = {(file.path, name): result for file in files for name, result in file.further.items()}
    files_of = {sanitize(source.address): source for source in sources.files}
    rereader = FileRereader(
        tuple(Source.of_windows([files_of[path] for path in own]) for own in parts.values()) or sources.files,
        read_options,
        further,
    )
    return Run(
        sanitize(name),
        timelines,
        sources.metadata,
        tuple(merged(notes)),
        world_size,
        devices,
        read_options.figures_only,
        sources,
        None if read_options.figures_only else rereader,
        align=read_options.align,
    )


def _ranks_of(files: Sequence[RankFile]) -> tuple[list[int], list[Note]]:
    return assign_ranks([(file.path, file.rank) for file in files])


def _ranks_by_window(sources: Sources, files: Sequence[RankFile]) -> tuple[list[int], list[Note]]:
    """Return the rank of each file, among those of its window, and notes on guesses.

    Raises:
        DptraceError: two files of a window claim one rank, or files do not say their rank and a window lacks some.
    """
    number = {sanitize(address): n for n, own in enumerate(sources.windows) for address in own}
    known = {sanitize(file.address): number[sanitize(file.whole().address)] for file in sources.files}
    ranks, notes = [0] * len(files), list[Note]()
    for window in range(len(sources.windows)):
        places = [place for place, file in enumerate(files) if known[file.path] == window]
        own, guesses = _ranks_of([files[place] for place in places])
        if guesses and len(places) * len(sources.windows) != len(files):
            raise DptraceError(
                f"{files[places[0]].path}: neither the files nor their names have ranks, and window {window + 1} has "
                "another number of files. Choose one window with --window N."
            )
        notes += guesses if not notes else []
        for place, rank in zip(places, own, strict=True):
            ranks[place] = rank
    return ranks, notes


def _leave_out_cpus(sources: Sources, results: dict[int, RankFile | DptraceError], strict: bool) -> None:
    """Replace files without GPU work by an error if others have some: operators on a CPU are no kernels."""
    on_cpu = {
        index: all(device.timeline.on_cpu for device in file.devices)
        for index, file in results.items()
        if isinstance(file, RankFile)
    }
    if all(on_cpu.values()):
        return
    for index in (index for index, alone in on_cpu.items() if alone):
        hosts = {device.timeline.host_of for device in results[index].devices}  # type: ignore[union-attr]
        unread = " and ".join(sorted(filter(None, hosts)))
        has = f"holds work of {unread}, which dptrace does not read" if unread else "has no GPU work"
        text = (
            f"{sources.files[index].address}: {has}, but other files of the run have GPU work; operators on a CPU are "
            "not compared with kernels. Open it on its own, or record this rank again."
        )
        error = TraceError(text)
        raise_if_required(sources, index, error, strict)
        results[index] = error


def _leave_out_incomplete(sources: Sources, results: dict[int, RankFile | DptraceError], strict: bool) -> None:
    """Replace files that lack collectives in all steps by an error if others have whole ones: what waits is unknown."""
    read = {index: file for index, file in results.items() if isinstance(file, RankFile)}
    if not any(map(has_whole_steps, read.values())):
        return
    for index in (index for index, file in read.items() if not has_whole_steps(file)):
        text = (
            f"{sources.files[index].address}: it ends in the middle, and each step lacks records of collectives, which "
            "torch.profiler writes thread by thread: what this rank waits for is unknown. Copy the file again, or "
            "record again."
        )
        error = TraceError(text)
        raise_if_required(sources, index, error, strict)
        results[index] = error


def _no_gpu_work(timelines: Sequence[Timeline]) -> list[str]:
    """Return a note if the figures are those of CPUs; none if the files' own notes say so, or name a device."""
    if not all(timeline.on_cpu for timeline in timelines) or any(timeline.host_of for timeline in timelines):
        return []
    if all(GPU_EVENTS in timeline.lacks for timeline in timelines):
        return []
    gloo = " and communication is gloo" if any(timeline.collectives for timeline in timelines) else ""
    return [f"No GPU work here: compute is CPU operators{gloo}."]


def _unmatched_patterns(timelines: Sequence[Timeline], patterns: Sequence[str]) -> list[str]:
    """Return a note for each pattern of further communication kernels that fits no kernel: it may be misspelled."""
    if not patterns:
        return []
    kernels = sorted({t.names[name] for t in timelines if not t.on_cpu for name in unique(t.name).tolist()})
    unmatched = [p for p in patterns if not any(matches(p, kernels, "--comm-pattern", re.IGNORECASE))]
    return [f"--comm-pattern {sanitize(pattern)!r} fits no kernel." for pattern in unmatched]


def _drop_unfinished_steps(devices: tuple[DeviceFigures, ...], metadata: dict[str, Any]) -> tuple[DeviceFigures, ...]:
    """Drop the step in which training ended or failed, which ``recorded_steps`` in run.json does not count."""
    complete_steps = {
        entry["rank"]: entry["recorded_steps"]
        for entry in rank_entries(metadata)
        if type(entry.get("rank")) is int and type(entry.get("recorded_steps")) is int
    }
    return tuple(device.first_steps(complete_steps.get(device.timeline.rank, 0)) for device in devices)


def _recorder_notes(metadata: dict[str, Any]) -> list[str]:
    """Return the recorder's notes in run.json, and a note if the recording failed."""
    notes_json = metadata.get("notes")
    notes = [note for note in notes_json if isinstance(note, str)] if isinstance(notes_json, list) else []
    failure = metadata.get("failure")
    if metadata.get("status") == "failed":
        why = failure.get("message") if isinstance(failure, dict) else None
        notes.insert(0, f"The recording failed and may be incomplete: {why or 'unknown reason'}.")
    return notes + _shared_gpus(metadata)


def _shared_gpus(metadata: dict[str, Any]) -> list[str]:
    """Return a note for each GPU that several ranks trained on, as run.json tells it."""
    ranks: dict[str, list[int]] = {}
    for entry in rank_entries(metadata):
        if isinstance(entry.get("device_uuid"), str) and type(entry.get("rank")) is int:
            ranks.setdefault(entry["device_uuid"], []).append(entry["rank"])
    text = (
        "{} share one GPU: each rank's kernels wait for the others', so times and figures of links are not those of a "
        "GPU for each rank."
    )
    shared = [sorted(group) for group in ranks.values() if len(group) > 1]
    return [text.format(f"Ranks {listed([str(rank) for rank in group], 8)}") for group in shared]


def _contradictions(ranks: Sequence[int], world_sizes_of_files: Sequence[int]) -> list[str]:
    """Return a note where the world sizes and ranks of the files show that they are not of one job."""
    world_sizes = sorted({world_size for world_size in world_sizes_of_files if world_size})
    if len(world_sizes) > 1:
        sizes = " and ".join(map(str, world_sizes))
        return [f"The files are from different jobs, with world sizes {sizes}. Open each run on its own."]
    outside = [rank for rank in ranks if world_sizes and rank >= world_sizes[0]]
    text = "Rank {} is outside world size {}: check that all files are from one run."
    return [text.format(outside[0], world_sizes[0])] if outside else []


def _copies(files: Sequence[RankFile]) -> list[tuple[str, str]]:
    """Return the path of each file that holds the same events as an earlier one, and the earlier path."""
    first = dict[bytes, str]()
    pairs = [(file.path, first.setdefault(file.digest, file.path)) for file in files]
    return [(path, earlier) for path, earlier in pairs if path != earlier]


def _missing(ranks: Sequence[int], world_size: int) -> list[str]:
    present = set(ranks)
    absent = world_size - len(present)
    if not absent:
        return []
    first = list(islice((rank for rank in range(world_size) if rank not in present), 8))
    listed = ", ".join(map(str, first)) + (f" and {absent - len(first):,} more" if absent > len(first) else "")
    word = "rank" if absent == 1 else "ranks"
    bound = " Gains have ranges with and without them as late as the others." if 4 * absent <= world_size else ""
    return [f"The job had {plural(world_size, 'rank')}; no trace was read for {word} {listed}.{bound}"]


# Which rank each file is, and what becomes of a file that can't be read.

Value = TypeVar("Value")

_MAX_ERRORS = 5
"""Unreadable files whose errors are listed."""


def raise_if_required(sources: Sources, index: int, error: DptraceError, strict: bool) -> None:
    """Raise why a file can't be read if it is the only one or the user named it, or where *strict* allows no gap."""
    if isinstance(error, SeveralRanksError):  # split_ranks lets them be read one by one
        return
    alone = len(sources.files) == 1 or sources.files[index] in sources.named
    if strict or alone or error.exit_code != DptraceError.exit_code:
        raise error


def split_ranks(
    sources: Sources, found: Mapping[int, Value | DptraceError]
) -> tuple[Sources, dict[int, Value | DptraceError]]:
    """Replace each file that turned out to hold several ranks by a source for each of them, with a note.

    Args:
        found: what each file holds, by its index, or why it can't be read.

    Returns:
        The sources, and what was read of them, by their new index; the ranks of those files are not read yet.
    """
    files, named, notes = list[Source](), set(sources.named), list(sources.notes)
    read = dict[int, Value | DptraceError]()
    for index, file in enumerate(sources.files):
        result = found[index]
        if not isinstance(result, SeveralRanksError):
            read[len(files)] = result
            files.append(file)
            continue
        ranks = [file.of_rank(part) for part in result.parts]
        files += ranks
        named |= {*ranks} if file in named else set()
        notes.append(str(result))
    return msgspec.structs.replace(sources, files=tuple(files), named=frozenset(named), notes=tuple(notes)), read


def collect_results(sources: Sources, found: Mapping[int, Value | DptraceError]) -> tuple[list[Value], list[str]]:
    """Return what was read, in the order of the files, and the notes on them.

    Args:
        found: what each file holds, by its index, or why it can't be read.

    Raises:
        DptraceError: no file can be read.
    """
    ordered = [found[index] for index in range(len(sources.files))]
    errors = [f"Left out: {error}" for error in _by_reason(sources, ordered)]
    if len(errors) > _MAX_ERRORS + 1:
        errors[_MAX_ERRORS:] = [f"Left out: {len(errors) - _MAX_ERRORS:,} more files that can't be read."]
    notes = [*sources.notes, *errors]
    values = [result for result in ordered if not isinstance(result, DptraceError)]
    if not values:
        raise DptraceError("No file is a readable trace:\n" + "\n".join(notes))
    return values, notes


def _by_reason(sources: Sources, results: Sequence[object]) -> list[str]:
    """Describe the files that can't be read, those with the same reason together: workers may all lack credentials."""
    files: dict[str, list[str]] = {}
    for source, result in zip(sources.files, results, strict=True):
        if isinstance(result, DptraceError):
            address = f"{source.address}: "
            named = address if str(result).startswith(address) else ""
            files.setdefault(str(result).removeprefix(named), []).append(named)
    more = {reason: plural(len(named) - 1, "more file") for reason, named in files.items()}
    return [
        named[0] + reason if len(named) == 1 else f"{named[0].removesuffix(': ')} and {more[reason]}: {reason}"
        for reason, named in files.items()
    ]


def assign_ranks(files: Sequence[tuple[str, int | None]]) -> tuple[list[int], list[Note]]:
    """Assign a rank to each file: from its ``distributedInfo``, else the file's name, else the order.

    Args:
        files: the path of each, and the rank that it knows.

    Returns:
        The ranks, in the order of the files, and a sentence on each rank that was guessed.

    Raises:
        DptraceError: two files claim one rank.
    """
    known = [rank if rank is not None else rank_in_name(path) for path, rank in files]
    owner: dict[int, str] = {}
    for rank, (path, _) in zip(known, files, strict=True):
        if rank in owner:
            raise DptraceError(
                f"{owner[rank]} and {path} both claim rank {rank}. Name the files of one run, one per rank; two "
                "captures of one rank are two runs. Several runs on one axis: dptrace view A --against B --against C."
            )
        if rank is not None:
            owner[rank] = path
    free = (rank for rank in range(len(files)) if rank not in owner)
    ranks = [next(free) if rank is None else rank for rank in known]
    text = "neither the file nor its name has a rank: assumed rank {}."
    return ranks, [
        Note(text, (str(rank),), file_name(path))
        for (path, _), rank, of_file in zip(files, ranks, known, strict=True)
        if of_file is None and len(files) > 1
    ]


# How large the files of a run are, before they are read.

_COMPRESSED = 10
"""How many bytes of JSON a compressed byte holds, about."""
_REPLAYED = 0.65
"""Bytes of memory that a replay takes for each of these: 5.6 MB for a rank of 9 MB of JSON."""
_COMPRESSIONS = (".gz", ".zst", ".bz2", ".xz", ".zip", ".tgz")


def json_bytes(files: Iterable[Source]) -> int | None:
    """Return about how many bytes of JSON the files hold, here or at URLs; None where the size of one is not known."""
    total = 0
    for path, source in {source.container: source for source in files}.items():
        identity = container(source).identity()
        if identity is None:
            return None
        total += int(identity[1]) * (_COMPRESSED if path.lower().endswith(_COMPRESSIONS) else 1)
    return total


def memory_warning(files: Sequence[Source], most: int) -> str:
    """Return what a replay of the files needs that this machine may not have, and what to do; empty where it has it.

    Args:
        most: how many of them are replayed at most.
    """
    replayed = min(1.0, most / max(1, len(files)))
    needed, free = round(replayed * _REPLAYED * (json_bytes(files) or 0)), available_memory()
    if needed <= free:
        return ""
    return (
        f"A replay of this run takes about {byte_size(needed)} of memory, and {byte_size(free)} are free. If it is "
        "ended for that, use a machine with more, or replay the traces of some nodes: name them with a glob in quotes, "
        "'RUN/*rank[0-7].*'. The other ranks then count as not recorded."
    )
