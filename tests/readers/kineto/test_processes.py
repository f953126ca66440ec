"""Files into which the files of several ranks were merged."""

from __future__ import annotations

import json
import os
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from dptrace.commands.shared.main import cli
from dptrace.errors import DptraceError, SeveralRanksError, TraceError
from dptrace.hta.event_frame import read_ranks
from dptrace.load.open import open_run
from dptrace.load.options import ReadOptions
from dptrace.readers.discovery import find
from dptrace.readers.kineto.reader import read_trace
from dptrace.run.run import Run
from dptrace.timeline.host_calls import HOST_CALLS
from tests.support.kineto_files import KinetoFile, training_step
from tests.support.real_traces import REAL, needs_real_traces

Document = dict[str, Any]

FIRST_PID = 1000


def rank_document(rank: int, gpu: int | None = None, later: int = 0) -> Document:
    """Return a rank's file as Kineto writes it: its kernels have the GPU as their process, and names end it.

    Args:
        gpu: its GPU; else that of its rank.
        later: what its ids of launches are larger by than those of the others.
    """
    file, gpu = KinetoFile(rank, 2), rank if gpu is None else gpu
    file.correlation += later
    for step in range(3):
        training_step(file, step, 100 * step)
    for event in file.events:
        args = event["args"]
        event["pid"] = gpu if "stream" in args else FIRST_PID + rank
        if "stream" in args:
            args["device"] = gpu
            event["dur"] += rank  # so that no rank's work equals another's
    names = [
        {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "ts": 0, "args": {"name": "python"}}
        for pid in (FIRST_PID + rank, gpu)
    ]
    span = {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "pid": "Spans", "tid": 1, "ts": 0, "dur": 300}
    return {**file.head, "traceEvents": [*file.events, *names, span], **file.tail}


def joined(documents: list[Document]) -> Document:
    """Join the events of files, one file after the other."""
    return {**documents[0], "traceEvents": [event for one in documents for event in one["traceEvents"]]}


def sglang(documents: list[Document]) -> Document:
    """Merge as SGLang's ``merge_profiles`` does, and sort by time."""
    for rank, document in enumerate(documents):
        for event in document["traceEvents"]:
            event["pid"] = f"[TP{rank:02d}] {event['pid']}"
    return by_time(documents)


def tracelens(documents: list[Document]) -> Document:
    """Merge as TraceLens' TraceFuse does: with the rank in the arguments, and numbers far apart."""
    for rank, document in enumerate(documents):
        for event in document["traceEvents"]:
            args = event.setdefault("args", {})
            args["rank"] = rank
            event["pid"] = event["pid"] if isinstance(event["pid"], str) else event["pid"] + rank * 100_000
            if "correlation" in args:
                args["correlation"] += rank * 10_000
    return {"traceEvents": [event for event in joined(documents)["traceEvents"] if event.get("cat") != "Trace"]}


def named(documents: list[Document]) -> Document:
    """Merge by time, with the rank in the names of processes."""
    for rank, document in enumerate(documents):
        for event in document["traceEvents"]:
            event["pid"] = event["pid"] if isinstance(event["pid"], str) else event["pid"] * 10 + rank
            if event["ph"] == "M":
                event["args"]["name"] = f"python, rank {rank}"
    return by_time(documents)


def by_time(documents: list[Document]) -> Document:
    """Merge the events of files by their time."""
    merged = joined(documents)
    return {**merged, "traceEvents": sorted(merged["traceEvents"], key=lambda event: float(event["ts"]))}


def write(document: Document, path: Path) -> Path:
    path.write_text(json.dumps(document))
    return path


def opened(*paths: Path, **options: Any) -> Run:
    return open_run([str(path) for path in paths], ReadOptions(**{"cache": False, **options}))


def same_work(expected: Run, actual: Run) -> bool:
    """Return whether the ranks of both runs have the same intervals."""
    pairs = list(zip(expected.timelines, actual.timelines, strict=True))
    return all(
        a.rank == b.rank
        and np.array_equal(a.start_ns - a.start_ns[0], b.start_ns - b.start_ns[0])
        and np.array_equal(a.end_ns - a.start_ns, b.end_ns - b.start_ns)
        and np.array_equal(a.phase, b.phase)
        for a, b in pairs
    )


def of_ranks(tmp_path: Path, **options: Any) -> Run:
    """Open the ranks' own files."""
    return opened(*(write(rank_document(rank, **options), tmp_path / f"rank{rank}.json") for rank in (0, 1)))


@pytest.mark.parametrize("gpu", [None, 0])
@pytest.mark.parametrize("merge", [joined, sglang, tracelens, named])
def test_a_merged_file_is_its_ranks(merge: Callable[..., Document], gpu: int | None, tmp_path: Path) -> None:
    """Also where each process sees one GPU, which is GPU 0 to both, and where ids of launches are the same."""
    merged = write(merge([rank_document(rank, gpu) for rank in (0, 1)]), tmp_path / "merged.json")

    run = opened(merged)

    assert same_work(of_ranks(tmp_path, gpu=gpu), run)
    assert (3, 3) == tuple(len(timeline.collectives) for timeline in run.timelines)
    assert any("merged.json: holds 2 processes, read as ranks 0, 1" in note for note in run.notes)
    assert not any("twice" in note or "no trace was read" in note for note in run.notes)


@pytest.mark.heavy
def test_gpus_of_events_that_are_mixed_are_told_by_their_launches(tmp_path: Path) -> None:
    """Ids that only one process has show whose a GPU is; of a shared one, whose the work."""
    for gpu, documents in (
        (None, [rank_document(1, later=5), rank_document(0)]),
        (0, [rank_document(0, 0), rank_document(1, 0, later=100)]),
    ):
        merged = write(by_time(documents), tmp_path / "merged.json")
        assert same_work(of_ranks(tmp_path, gpu=gpu), opened(merged))


def test_work_that_may_be_of_two_processes_is_refused(tmp_path: Path) -> None:
    """The sentence says what is not told apart."""
    for later in (0, 5):
        merged = write(by_time([rank_document(0, 0), rank_document(1, 0, later)]), tmp_path / "merged.json")
        with pytest.raises(TraceError, match=r"merged\.json: holds 2 processes whose launches.*own files"):
            opened(merged)


@pytest.mark.heavy
@pytest.mark.parametrize("has_host", [True, False])
def test_labels_say_the_ranks(has_host: bool, tmp_path: Path) -> None:
    """In any order, also where neither a launch nor an operator is recorded; to HTA, too."""
    for labels, ranks in (
        (("TP03", "TP01"), (3, 1)),
        (("TP00-PP01", "TP00-PP00"), (1, 0)),
        (("TP01-DP01-PP00", "TP00-DP00-PP00"), (1, 0)),
        (("Rank 5", "Rank 4"), (5, 4)),
    ):
        documents = [rank_document(0), rank_document(1)]
        for label, document in zip(labels, documents, strict=True):
            for event in document["traceEvents"]:
                event["pid"] = f"[{label}] {event['pid']}"
            if not has_host:
                document["traceEvents"] = [event for event in document["traceEvents"] if event.get("cat") == "kernel"]
        path = write(joined(documents), tmp_path / "merged.json")
        run = opened(path)
        assert sorted(ranks) == sorted(read_ranks(find([str(path)]), (), round_out=True)[0])
        length = {timeline.rank: int(timeline.end_ns[0] - timeline.start_ns[0]) for timeline in run.timelines}
        assert {ranks[0]: 20_000, ranks[1]: 21_000} == length


def test_ranks_of_a_second_node_are_its_own(tmp_path: Path) -> None:
    """The file says of the first process that it is rank 2 of 4."""
    documents = [rank_document(0), rank_document(1)]
    documents[0]["distributedInfo"] = {"rank": 2, "world_size": 4}

    assert (2, 3) == opened(write(joined(documents), tmp_path / "merged.json")).ranks


def test_one_process_is_one_rank(tmp_path: Path) -> None:
    """It drives two GPUs, a worker that it has forked runs operators, and a call has a wrong process id."""
    document = rank_document(0)
    events = document["traceEvents"]
    other = [{**event, "pid": 1, "args": {**event["args"], "device": 1}} for event in events if event["pid"] == 0]
    worker = {"ph": "X", "cat": "cpu_op", "name": "aten::cat", "pid": 77, "tid": 77, "ts": 5, "dur": 10}
    damaged = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 10, "tid": 1, "ts": 7, "dur": 1}
    document["traceEvents"] = [*events, *(event for event in other if event["ph"] == "X"), *[worker] * 9, damaged]

    run = opened(write(document, tmp_path / "rank0.json"))

    assert [(0, 0), (0, 1)] == [(timeline.rank, timeline.device) for timeline in run.timelines]


def test_ranks_without_a_gpu_are_split_by_process(tmp_path: Path) -> None:
    """Operators of each process are those of its rank."""
    documents = []
    for rank in (0, 1):
        file = KinetoFile(rank, 2, backend="gloo").label("ProfilerStep#0", 0, 100)
        file.op("aten::mm", 10, 20).op("aten::mm", 20, 30 + rank)
        documents.append({**file.head, "traceEvents": [{**e, "pid": FIRST_PID + rank} for e in file.events]})

    run = opened(write(by_time(documents), tmp_path / "merged.json"))

    assert [20_000, 21_000] == [int(timeline.end_ns[-1] - timeline.start_ns[0]) for timeline in run.timelines]


def test_a_damaged_event_moves_no_other_to_another_rank(tmp_path: Path) -> None:
    """It is left out, and the others stay where they are."""
    path = write(sglang([rank_document(rank, 0) for rank in (0, 1)]), tmp_path / "merged.json")
    text = path.read_text()
    place = text.index('"Optimizer.step#SGD.step"')
    path.write_text(text[:place] + text[place:].replace('"ts": 60', '"ts": [60]', 1))

    run = opened(path)

    kernels = [len(timeline.start_ns) for timeline in run.timelines]
    assert [12, 12] == kernels
    assert any("could not be decoded" in note for note in run.notes)


@pytest.mark.heavy
def test_ranks_are_cached_and_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each on its own."""
    monkeypatch.setenv("DPTRACE_CACHE", str(tmp_path / "cache"))
    merged = write(sglang([rank_document(rank, 0) for rank in (0, 1)]), tmp_path / "merged.json")
    runs = [opened(merged, cache=True), opened(merged, cache=True), opened(merged, jobs=2)]

    assert same_work(runs[0], runs[1])
    assert same_work(runs[0], runs[2])
    for timeline in runs[1].timelines:
        assert runs[1].rereader is not None
        calls = runs[1].rereader(timeline.path, HOST_CALLS)
        assert calls is not None
        assert np.array_equal(timeline.start_ns, calls.device_start_ns)


@pytest.mark.heavy
def test_a_merged_file_beside_others_and_in_an_archive(tmp_path: Path) -> None:
    """Its ranks are some of the run's."""
    merged = write(sglang([rank_document(rank) for rank in (0, 1)]), tmp_path / "merged.json")
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.write(merged, "merged.json")
    third = rank_document(2)

    run = opened(merged, write(third, tmp_path / "rank2.json"))

    assert (0, 1, 2) == run.ranks
    assert (0, 1) == opened(tmp_path / "all.zip").ranks


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
def test_a_pipe_is_refused(tmp_path: Path) -> None:
    """It can be read only once."""
    pipe, text = tmp_path / "pipe", json.dumps(joined([rank_document(0), rank_document(1)]))
    os.mkfifo(pipe)
    threading.Thread(target=pipe.write_text, args=(text,), daemon=True).start()

    with pytest.raises(TraceError, match=r"holds 2 processes.*save it as a file"):
        opened(pipe)


def test_frames_are_one_for_each_rank(tmp_path: Path) -> None:
    """HTA's, too."""
    path = str(write(joined([rank_document(rank, 0) for rank in (0, 1)]), tmp_path / "merged.json"))

    frames, notes = read_ranks(find([path]), (), round_out=True)

    assert [0, 1] == list(frames)
    assert [27, 27] == [int((frame.frame["pid"] >= FIRST_PID).sum()) for frame in frames.values()]
    assert [12, 12] == [int((frame.frame["pid"] == 0).sum()) for frame in frames.values()]
    assert any("holds 2 processes" in note for note in notes)


def test_one_trace_of_several_ranks_is_an_error(tmp_path: Path) -> None:
    """What reads one trace names the ranks that there are."""
    path = write(joined([rank_document(0), rank_document(1)]), tmp_path / "merged.json")

    with pytest.raises(SeveralRanksError) as raised:
        read_trace(path)

    assert ("rank 0", "rank 1") == raised.value.parts


@pytest.mark.heavy
def test_commands_show_both_ranks(tmp_path: Path) -> None:
    """Each by its number."""
    path = str(write(joined([rank_document(rank, 0) for rank in (0, 1)]), tmp_path / "merged.json"))
    page = tmp_path / "page.html"

    analysis = CliRunner().invoke(cli, ["analyze", path, "--no-cache", "--json"])
    view = CliRunner().invoke(cli, ["view", path, "--no-cache", "-o", str(page)])

    assert [0, 1] == sorted({row["rank"] for row in json.loads(analysis.stdout)["ranks"]})
    assert (0, True) == (view.exit_code, page.exists())


@pytest.mark.slow
@needs_real_traces
@pytest.mark.parametrize("merge", [joined, sglang, by_time])
def test_merged_recordings_equal_their_files(merge: Callable[..., Document], tmp_path: Path) -> None:
    """Of real ranks: the same intervals and phases."""
    import gzip

    files = sorted((REAL / "dlrm_v100_4ranks").glob("*.json.gz"))
    documents = [json.loads(gzip.decompress(file.read_bytes())) for file in files]
    documents.sort(key=lambda document: int(document["distributedInfo"]["rank"]))
    for document in documents:
        for event in document["traceEvents"]:
            event.setdefault("pid", "")

    assert same_work(opened(*files), opened(write(merge(documents), tmp_path / "merged.json")))


def test_strict_reads_a_merged_file(tmp_path: Path) -> None:
    """It is not damaged."""
    path = write(joined([rank_document(0), rank_document(1)]), tmp_path / "merged.json")

    assert (0, 1) == opened(path, strict=True).ranks
    with pytest.raises(DptraceError, match="both claim rank 0"):
        opened(path, write(rank_document(0), tmp_path / "rank0.json"))
