"""Exported traces have the figures of the run in every format."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto

import dptrace
from dptrace.analysis.per_gpu.split import PART_LABELS, Part
from dptrace.errors import UsageError
from dptrace.export import tracks as rows
from dptrace.export.formats import FORMATS, format_of, write_trace
from dptrace.export.perfetto import packet_head, times
from dptrace.run.run import Run
from dptrace.timeline.model import Phase, Timeline
from tests.support.builders import TimelineBuilder, two_rank_timelines
from tests.support.exported import Track, read_back
from tests.support.real_traces import needs_real_traces, real

FIGURE_OF = {
    Part.FORWARD: "forward_ns",
    Part.BACKWARD: "backward_ns",
    Part.OPTIMIZER: "optimizer_ns",
    Part.OTHER: "other_ns",
    Part.EXPOSED_COMM: "exposed_comm_ns",
    Part.EXPOSED_MEMORY: "exposed_memory_ns",
    Part.IDLE: "idle_ns",
}


@pytest.fixture(params=sorted(FORMATS))
def suffix(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def exported(run: Run, folder: Path, suffix: str) -> list[Track]:
    """Write *run* and read it back."""
    path = folder / f"out{suffix}"
    written = write_trace(run, path, suffix)
    tracks = read_back(path)
    assert written == sum(len(track.slices) for track in tracks)
    return tracks


def run_of(*timelines: Timeline) -> Run:
    return Run("runs/made by hand", timelines)


def assert_same_split(run: Run, tracks: list[Track]) -> None:
    """Compare the sums of every rank's and step's phases with the split, to the nanosecond."""
    rows = [track for track in tracks if track.name == "phases"]
    assert len(run.splits) == len(rows)
    for split, row in zip(run.splits, rows, strict=True):
        held: Counter[tuple[str, str]] = Counter()
        for each in row.slices:
            held[each.args["step"], each.name] += each.end_ns - each.start_ns
        for k, step in enumerate(split.names):
            for part, figure in FIGURE_OF.items():
                assert split.figures[figure][k] == held[step, PART_LABELS[part]]


def assert_nested(tracks: list[Track]) -> None:
    """Check that no slice of a track starts before the one before has ended."""
    for track in tracks:
        for one, other in pairwise(track.slices):
            assert one.end_ns <= other.start_ns, (track.name, one, other)


def test_phases_add_up_to_the_split(tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks come in order, and in each its tracks; those written in parts are the same; progress rises up to all."""
    run = run_of(*two_rank_timelines())
    tracks = exported(run, tmp_path, suffix)

    assert_same_split(run, tracks)
    names = [
        *("steps", "phases", "exposed communication", "overlapped communication"),
        *("stream 7 (compute, memory)", "stream 20 (communication)"),
    ]
    assert [(f"rank {rank} · GPU {rank} (NVIDIA H100)", name) for rank in (0, 1) for name in names] == [
        (track.process, track.name) for track in tracks
    ]
    # A compute kernel has no argument of a collective, not even a zero.
    assert {"phase": "forward", "step": "ProfilerStep#0"} == tracks[4].slices[1].args

    monkeypatch.setattr(rows, "CHUNK", 3)
    progress: list[float] = []
    assert tracks == exported(run, tmp_path, suffix)
    write_trace(run, tmp_path / f"x{suffix}", suffix, progress.append)
    assert progress == sorted(progress)
    assert 0 < progress[0] < 1
    assert progress[-1] == 2


def test_steps_carry_their_nine_figures(tmp_path: Path, suffix: str) -> None:
    """A step's slice is as long as its wall time, and its arguments are the figures of the split and of waiting."""
    run = run_of(*two_rank_timelines())

    row = exported(run, tmp_path, suffix)[0]

    assert ["ProfilerStep#0", "ProfilerStep#1"] == [each.name for each in row.slices]
    for k, each in enumerate(row.slices):
        figures = {name: int(values[k]) for name, values in run.splits[0].figures.items()}
        assert figures | run.cross_rank.exposed_waits[0].step(k) == each.args
        assert each.args["wall_ns"] == each.end_ns - each.start_ns


def test_communication_is_reported_by_exposure_and_by_collective(tmp_path: Path, suffix: str) -> None:
    """A collective's exposed and overlapped parts are on separate tracks, and its kernel has both sums."""
    tracks = {track.name: track for track in exported(run_of(two_rank_timelines()[1]), tmp_path, suffix)}

    exposed, overlapped = (tracks[f"{word} communication"].slices for word in ("exposed", "overlapped"))
    kernel = tracks["stream 20 (communication)"].slices[0]

    assert (1_070_000, 1_081_000, "exposed all_reduce") == (exposed[0].start_ns, exposed[0].end_ns, exposed[0].name)
    assert (1_050_000, 1_070_000) == (overlapped[0].start_ns, overlapped[0].end_ns)
    assert {
        "phase": "backward",
        "step": "ProfilerStep#0",
        "collective": "all_reduce",
        "dtype": "float",
        "group": "default_pg",
        "bytes": 4096,
        "group_size": 2,
        "exposed_ns": 11_000,
        "overlapped_ns": 20_000,
    } == kernel.args
    assert kernel.name == "ncclDevKernel_AllReduce"


def test_overlapping_kernels_get_lanes(tmp_path: Path, suffix: str) -> None:
    """Kernels of one stream that overlap are all kept, on tracks where nothing overlaps."""
    build = TimelineBuilder(0)
    for start, end in ((0, 10), (4, 6), (5, 12), (6, 8), (12, 20), (20, 20), (20, 30)):
        build.compute(start, end, name=f"{start} to {end}")

    tracks = exported(run_of(build.build()), tmp_path, suffix)

    assert_nested(tracks)
    streams = [track for track in tracks if track.name.startswith("stream 7")]
    assert [4, 2, 1] == [len(track.slices) for track in streams]
    assert all(f"{each.start_ns} to {each.end_ns}" == each.name for track in streams for each in track.slices)


HOSTILE = (
    'quotes " and \\ and </script><script>alert(1)</script>',
    "controls \x00\x01\x1b[31m\n\t\u2028\u202e",
    "void at::native::(anonymous namespace)::kernel<float, 4>(int)  × µ 日本 \U0001f600",
    "",
)


def test_names_survive(tmp_path: Path, suffix: str) -> None:
    """Names are unchanged, whatever they contain; one that is not UTF-8 stays readable wherever it occurs."""
    build = TimelineBuilder(0)
    for number, name in enumerate((*HOSTILE, "bad \udcff byte")):
        build.compute(number, number + 1, name=name)
    timeline = build.build()
    timeline = replace(timeline, device_name="GPU \udcfe", windows=replace(timeline.windows, names=("step \udcfd",)))

    track = exported(Run("run \udcfc", (timeline,), notes=("note \udcfb",)), tmp_path, suffix)[-1]

    assert [*HOSTILE, "bad \\udcff byte"] == [each.name for each in track.slices]
    assert ("rank 0 · GPU 0 (GPU \\udcfe)", "step \\udcfd") == (track.process, track.slices[0].args["step"])


def test_times_are_exact(tmp_path: Path, suffix: str) -> None:
    """Epoch nanoseconds, which a double cannot represent, and each rank at its own time, half a century apart."""
    epoch = 1_763_683_646_123_456_789
    build = TimelineBuilder(0, bounds=(epoch, epoch + 2_000_001))
    for k in (0, 999, 1_000_001, 1_999_999):
        build.compute(epoch + k, epoch + k + 1)

    near = TimelineBuilder(1).compute(7, 30).build()
    tracks = exported(run_of(near, build.build()), tmp_path, suffix)

    assert 7 == next(track.slices[0].start_ns for track in tracks if track.name.startswith("stream"))
    assert [epoch, epoch + 999, epoch + 1_000_001, epoch + 1_999_999] == [s.start_ns for s in tracks[-1].slices]
    assert [1, 1, 1, 1] == [each.end_ns - each.start_ns for each in tracks[-1].slices]


OUTSIDE = TimelineBuilder(0, bounds=(10, 20)).compute(0, 3).compute(12, 14).compute(25, 30).build()
ODD = {
    "no timelines": ((), []),
    "no intervals": ((TimelineBuilder(0).build(),), ["steps", "phases"]),
    "no steps": ((TimelineBuilder(0, bounds=()).compute(3, 5).build(),), ["stream 7 (compute)"]),
    "a CPU": ((TimelineBuilder(0, device=-1).compute(0, 9).build(),), ["steps", "phases", "thread 7 (compute)"]),
    "work outside the steps": (
        (replace(OUTSIDE, step=np.array([-1, 0, -2], np.int32)),),
        ["steps", "phases", "stream 7 (compute)"],
    ),
}


def test_odd_runs_are_exported(tmp_path: Path, suffix: str) -> None:
    """An empty run, a rank without intervals or steps, a CPU's threads, and work launched outside the steps."""
    for what, (timelines, names) in ODD.items():
        tracks = exported(run_of(*timelines), tmp_path, suffix)
        assert (what, names) == (what, [track.name for track in tracks])
        assert {"rank 0 · CPU"} == {track.process for track in tracks} or what != "a CPU"
        outside = ["before the first", "ProfilerStep#0", "after the last"]
        assert what != "work outside the steps" or outside == [each.args["step"] for each in tracks[-1].slices]


def test_the_same_run_gives_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    """Neither the time nor the file's name is written to the file."""
    run = run_of(*two_rank_timelines())
    paths = [tmp_path / f"{name}{suffix}" for name in ("one", "other")]
    for path in paths:
        write_trace(run, path, suffix)

    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_chrome_numbers_do_not_collide(tmp_path: Path) -> None:
    """No thread number is 0, a process's number, or used twice: Perfetto gives these a special meaning."""
    write_trace(run_of(*two_rank_timelines()), tmp_path / "x.json", ".json")

    events = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))["traceEvents"]
    pids = {event["pid"] for event in events}
    tids = {(event["pid"], event["tid"]) for event in events if event["ph"] != "C"}
    assert {1, 2} == pids
    assert not {tid for _, tid in tids} & {0, *pids}
    assert len({tid for _, tid in tids}) == len(tids)


def test_chrome_head_says_where_from_and_how(tmp_path: Path) -> None:
    """The unit is in the first bytes and is not ns; base time, source, clocks and notes are included."""
    write_trace(Run("runs/ddp", two_rank_timelines(), notes=("mind this",)), tmp_path / "x.json", ".json")

    text = (tmp_path / "x.json").read_text(encoding="utf-8")
    head = json.loads(text)
    assert text.startswith('{"displayTimeUnit":"ms"')
    assert head["baseTimeNanoseconds"] == 1_000_000
    assert ("runs/ddp", ["mind this"]) == (head["otherData"]["source"], head["otherData"]["notes"])
    assert "as recorded" in head["otherData"]["clocks"]


def test_perfetto_writes_each_name_once(tmp_path: Path) -> None:
    """A name used a thousand times, in several ranks, is in the file once."""
    timelines = []
    for rank in (0, 1):
        build = TimelineBuilder(rank, bounds=(0, 1000))
        for k in range(1000):
            build.compute(k, k + 1, Phase.BACKWARD, "a_kernel_with_a_name")
        timelines.append(build.build())
    path = tmp_path / "x.pftrace"

    write_trace(run_of(*timelines), path, ".pftrace")

    assert path.read_bytes().count(b"a_kernel_with_a_name") == 1
    assert path.read_bytes().count(b"\x08backward") == 1


def test_perfetto_moves_times_before_zero(tmp_path: Path) -> None:
    """Its timestamps are unsigned, so a recording that starts before its clock's zero is moved to zero."""
    timeline = TimelineBuilder(0, bounds=(-50, 50)).compute(-50, -20).compute(10, 20).build()

    tracks = exported(run_of(timeline), tmp_path, ".pftrace")

    assert [(0, 30), (60, 70)] == [(each.start_ns, each.end_ns) for each in tracks[-1].slices]


def test_unknown_endings_name_the_known() -> None:
    """A name without a known suffix is refused with the list of known ones."""
    for name in ("x.txt", "x", "x.gz", "x.pb", "json", ".json", ".pftrace"):
        with pytest.raises(UsageError, match=r"\.pftrace .*\.json\.gz .*\.json "):
            format_of(Path(name))


@pytest.mark.slow
@needs_real_traces
@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        ("ddp_a100_rank0of2", ".json.gz"),
        ("ddp_a100_rank0of2", ".pftrace"),
        ("ddp_mi300_rank0of8", ".json"),
        ("sharded_h100_8ranks", ".pftrace"),
    ],
)
def test_real_traces(tmp_path: Path, name: str, suffix: str) -> None:
    """Recordings from real GPUs are exported completely: phases add up, nothing overlaps, no interval is lost."""
    run = dptrace.open(real(name))

    tracks = exported(run, tmp_path, suffix)

    assert_same_split(run, tracks)
    assert_nested(tracks)
    kept = sum(len(track.slices) for track in tracks if track.name.startswith("stream"))
    assert sum(map(len, run.timelines)) == kept


def test_protobuf_reads_varints_of_any_length() -> None:
    """The packets of the other tests hold times up to 63 bits, all as long as the longest."""
    numbers = [0, 1, 127, 128, 300, 2**32, 2**63 - 1]
    rest = proto.TracePacket(trusted_packet_sequence_id=7).SerializeToString()
    for some in (numbers[:3], numbers, []):
        written = times(np.array(some, np.int64))
        packets = proto.Trace.FromString(b"".join(packet_head(rest, len(t)) + t + rest for t in written)).packet
        assert [(number, 7) for number in some] == [(p.timestamp, p.trusted_packet_sequence_id) for p in packets]
        assert len({*map(len, written)}) <= 1
