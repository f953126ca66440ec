"""Exports of Nsight Systems: what the tables hold is what a run shows, in the schemas of several releases."""

from __future__ import annotations

import os
import random
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

import dptrace
from dptrace.errors import DptraceError, TraceError
from dptrace.readers.discovery import find
from dptrace.readers.nsight import read_export
from dptrace.readers.source import Source
from dptrace.run.run import Run
from dptrace.timeline.model import Kind
from tests.support.nsight_files import (
    COLUMNS,
    EPOCH,
    NCCL_CALL,
    NCCL_INIT,
    PLANTED,
    NsightFile,
    nccl_payload,
    process_id,
    training,
)
from tests.support.real_traces import needs_real_traces, real

REAL_FILES = ("nsys/h100_2gpu_1s.sqlite", "nsys/mfu_2gpu_before.sqlite")


def notes(run: Run) -> str:
    return "\n".join(run.notes)


def rows(path: str | Path, query: str) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as database:
        return database.execute(query).fetchall()


@pytest.mark.heavy
@needs_real_traces
@pytest.mark.parametrize("name", REAL_FILES)
def test_kernels_and_copies_are_those_of_plain_sql(name: str) -> None:
    """Per GPU and name: the same number and time of kernels, copies and sets as SQL on the file gives."""
    run = dptrace.open(real(name), cache=False)
    counts, times = Counter[tuple[int, str]](), Counter[tuple[int, str]]()
    for timeline in run.timelines:
        for place, start, end in zip(timeline.name, timeline.start_ns, timeline.end_ns, strict=True):
            counts[timeline.device, timeline.names[place]] += 1
            times[timeline.device, timeline.names[place]] += int(end - start)
    kernels = rows(
        real(name),
        "SELECT deviceId, s.value, count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL k "
        "JOIN StringIds s ON s.id = k.demangledName GROUP BY 1, 2",
    )
    copies = rows(
        real(name),
        "SELECT deviceId, 'Memcpy ' || substr('HtoDDtoHHtoAAtoHAtoAAtoDDtoADtoDHtoHPtoP', 4 * copyKind - 3, 4) || ' ('"
        " || a.label || ' -> ' || b.label || ')', count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_MEMCPY "
        "JOIN ENUM_CUDA_MEM_KIND a ON a.id = srcKind JOIN ENUM_CUDA_MEM_KIND b ON b.id = dstKind GROUP BY 1, 2",
    )
    sets = rows(
        real(name),
        "SELECT deviceId, 'Memset (' || label || ')', count(*), sum(end - start) FROM CUPTI_ACTIVITY_KIND_MEMSET "
        "JOIN ENUM_CUDA_MEM_KIND a ON a.id = memKind GROUP BY 1, 2",
    )

    assert counts == {(device, text): count for device, text, count, _ in [*kernels, *copies, *sets]}
    assert times == {(device, text): ns for device, text, _, ns in [*kernels, *copies, *sets]}


@pytest.mark.heavy
@needs_real_traces
@pytest.mark.parametrize("name", REAL_FILES)
def test_the_split_is_that_of_plain_sql(name: str) -> None:
    """Communication, compute and their overlap on each GPU, from the steps and by brute force over SQL's rows."""
    run = dptrace.open(real(name), cache=False)
    steps = {step["device"]: step for step in run.steps().to_dict("records")}

    for device in (0, 1):
        busy: dict[str, set[int]] = {"comm": set(), "compute": set(), "memory": set()}
        unit = 1_000  # ns: what SQL's times are rounded to
        for table, kind in (("KERNEL", ""), ("MEMCPY", "memory"), ("MEMSET", "memory")):
            text = "(SELECT value FROM StringIds WHERE id = shortName)" if not kind else "''"
            query = f"SELECT start, end, {text} FROM CUPTI_ACTIVITY_KIND_{table} WHERE deviceId = {device}"
            for start, end, kernel in rows(real(name), query):
                which = kind or ("comm" if "nccl" in str(kernel) else "compute")
                busy[which].update(range(int(str(start)) // unit, int(str(end)) // unit))
        expected = {
            "overlapped_comm_ns": len(busy["comm"] & busy["compute"]),
            "exposed_comm_ns": len(busy["comm"] - busy["compute"]),
            "exposed_memory_ns": len(busy["memory"] - busy["compute"] - busy["comm"]),
        }
        step = steps[device]
        computed = sum(step[f"{phase}_ns"] for phase in ("forward", "backward", "optimizer", "other"))
        slack = unit * (len(run.timelines[device]) + 1)

        assert abs(computed - len(busy["compute"]) * unit) < slack
        for column, count in expected.items():
            assert abs(step[column] - count * unit) < slack, column


def test_steps_have_the_planted_split(tmp_path: Path) -> None:
    """Phases come from autograd's and the optimizer's ranges, times from the epoch, and the wait is the late rank's."""
    run = dptrace.open(training().write(tmp_path / "a.sqlite"), cache=False)
    steps, collectives = run.steps(), run.collectives()

    assert len(steps) == 8
    assert (steps.loc[steps["rank"] == 0, [*PLANTED]] == [*PLANTED.values()]).all(axis=None)
    assert (steps["exposed_memory_ns"] == 10_000).all()
    assert (steps.loc[steps["rank"] == 0, "exposed_wait_ns"] == 10_000).all()
    assert int(collectives["start_ns"].min()) == EPOCH + 1_540_000
    assert set(zip(collectives["kind"], collectives["bytes"], collectives["group"], strict=True)) == {
        ("all_reduce", 1 << 20, "abc")
    }
    assert [timeline.device_name for timeline in run.timelines] == ["NVIDIA H100"] * 2
    assert run.timelines[0].host_name == "node0"


NEEDED = ("CUPTI_ACTIVITY_KIND_KERNEL", "StringIds")
MAY_LACK_TIMES = ("CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS")


@pytest.mark.parametrize(
    "lacking", ["CUPTI_ACTIVITY_KIND_KERNEL.start", "CUPTI_ACTIVITY_KIND_MEMCPY.end", "StringIds", "StringIds.value"]
)
def test_work_without_times_or_names_is_refused(lacking: str, tmp_path: Path) -> None:
    """It can't be placed, or communication can't be told from compute: no figure would be right."""
    table = lacking.partition(".")[0]
    with pytest.raises(DptraceError, match=rf"a\.sqlite.*: .*{table}.*nsys export"):
        dptrace.open(training().write(tmp_path / "a.sqlite", [lacking]), cache=False)


@pytest.mark.slow
@pytest.mark.parametrize(
    "lacking",
    [
        *(table for table in COLUMNS if table not in NEEDED),
        *(
            f"{table}.{column}"
            for table, columns in COLUMNS.items()
            for column in columns
            if table != "StringIds" and (column not in ("start", "end") or table in MAY_LACK_TIMES)
        ),
    ],
)
def test_any_table_and_column_may_be_missing(lacking: str, tmp_path: Path) -> None:
    """What the file still has is read, and what figures need is said to be missing."""
    run = dptrace.open(training().write(tmp_path / "a.sqlite", [lacking]), cache=False)
    table, _, column = lacking.partition(".")
    needed = {"CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"}
    optional = {"text", "textId", "eventType", "jsonText", "binaryData"}

    assert all(len(timeline) for timeline in run.timelines)
    if column in ("start", "end"):
        assert f"the export lacks {table}" in notes(run)
    elif table in needed and column not in optional:
        assert f"the export lacks {lacking}" in notes(run)
    if table.startswith("TARGET_INFO") or table == "META_DATA_EXPORT":
        assert len(run.steps()) == 8


def test_autograds_threads_tell_backward_without_ranges(tmp_path: Path) -> None:
    """Without operators in the file, the threads that launch work do, and a note says so."""
    run = dptrace.open(training(operators=False).write(tmp_path / "a.sqlite"), cache=False)
    sums = run.steps()[["forward_ns", "backward_ns", "other_ns"]].sum()

    assert sums.to_dict() == {"forward_ns": 8 * 200_000, "backward_ns": 8 * 300_000, "other_ns": 8 * 100_000}
    assert "pt_autograd_0" in notes(run)


@pytest.mark.parametrize(
    ("ranges", "operators", "count", "words"),
    [(True, True, 6, "iteration"), (False, True, 5, "Optimizer.step"), (False, False, 5, "repeat")],
)
def test_steps_are_inferred_from_what_repeats(
    ranges: bool, operators: bool, count: int, words: str, tmp_path: Path
) -> None:
    """Ranges around the work, else the optimizer's ends, else a kernel that is launched once a step."""
    file = training(ranks=1, steps=6, ranges=ranges, operators=operators)
    run = dptrace.open(file.write(tmp_path / "a.sqlite"), cache=False)
    steps = run.steps()

    assert [(300_000, 200_000)] * count == [*zip(steps["backward_ns"], steps["forward_ns"], strict=True)]
    assert "inferred" in notes(run)
    assert words in notes(run)


def test_layers_are_no_steps(tmp_path: Path) -> None:
    """Forward passes that only repeat layers stay one window."""
    file = NsightFile()
    for i in range(60):
        at = 10_000 * i
        file.kernel(1, 1, at, at + 1_000, at + 9_000, ("norm", "gemm", "gelu")[i % 3])
    run = dptrace.open(file.write(tmp_path / "a.sqlite"), cache=False)

    assert len(run.steps()) == 1


def test_a_named_range_is_the_step(tmp_path: Path) -> None:
    """--step-range takes the outermost ranges of that name, numbered as they are; a wrong name is said."""
    file = training(ranks=1, ranges=False)
    for step in range(4):
        file.range(100, 1, 1_000_000 * (step + 1), 1_000_000 * (step + 1) + 950_000, f"train_step {step + 7}")
        file.range(100, 1, 1_000_000 * (step + 1), 1_000_000 * (step + 1) + 450_000, "half")
    path = file.write(tmp_path / "a.sqlite")
    named = dptrace.open(path, step_range="train_step", cache=False)
    halves = dptrace.open(path, step_range="half", cache=False)
    wrong = dptrace.open(path, step_range="epoch", cache=False)

    assert named.steps()["step"].tolist() == [f"ProfilerStep#{step}" for step in range(7, 11)]
    assert "inferred" not in notes(named)
    assert halves.steps()["step"].tolist() == [f"ProfilerStep#{step}" for step in range(4)]
    assert "'epoch' fits no range" in notes(wrong)
    assert "train_step" in notes(wrong)


def test_the_rank_is_that_of_the_environment(tmp_path: Path) -> None:
    """Of a process that nsys started itself; what can't be right is ignored."""
    for variables, expected in (
        (['RANK="3"', 'WORLD_SIZE="8"'], (3, 8)),
        (["SLURM_PROCID=2"], (2, None)),
        (['RANK="9"', 'WORLD_SIZE="8"'], (None, None)),
        (['RANKS="1"'], (None, None)),
    ):
        file = training(ranks=1)
        file.rows["META_DATA_CAPTURE"] += [("PROCESS_0:ENVIRONMENT_VARIABLE", text) for text in variables]
        trace = read_export(Source(str(file.write(tmp_path / f"{variables[0]}.sqlite"))))
        assert expected == (trace.rank, trace.world_size)


def test_ranks_are_those_of_nccl(tmp_path: Path) -> None:
    """The rank in the largest communicator counts before the order of the GPUs, and its size makes shares wholes."""
    file = training(ranks=2)
    for number in (0, 1):
        start = EPOCH % 1000 + number
        file.range(
            100 + number, 1, start, start + 1, "ncclCommInitRank", nccl_payload(NCCL_INIT, 0xABC, 2, 1 - number, 0)
        )
        at = 6_000_000
        file.range(100 + number, 2, at, at + 9_000, "ncclAllGather", nccl_payload(NCCL_CALL, 0xABC, 4096))
        file.kernel(100 + number, 2, at + 1_000, at + 10_000, at + 20_000, "ncclDevKernel_AllGather", device=number)
    run = dptrace.open(file.write(tmp_path / "a.sqlite"), cache=False)
    gathers = run.collectives().query("kind == 'all_gather'")

    assert [(timeline.rank, timeline.device) for timeline in run.timelines] == [(0, 1), (1, 0)]
    assert gathers["bytes"].tolist() == [2 * 4096] * 2
    assert (gathers["group_size"] == 2).all()


def test_messages_of_a_group_are_one_kernel(tmp_path: Path) -> None:
    """Sends and receives between ncclGroupStart and ncclGroupEnd are summed; JSON payloads count as binary ones do."""
    file = training(ranks=1)
    text = '{"Payload": {"NCCL communicator ID": 7, "Message size [bytes]": 300}}'
    calls = ("ncclGroupStart", None), ("ncclSend", text), ("ncclRecv", text), ("ncclSend", text)
    for i, (name, payload) in enumerate(calls):
        file.range(100, 1, 5_500_000 + 10 * i, 5_500_000 + 10 * i + 5, name, payload)
    file.range(100, 1, 5_500_100, 5_510_000, "ncclGroupEnd")
    file.kernel(100, 1, 5_501_000, 5_520_000, 5_530_000, "ncclDevKernel_SendRecv")
    trace = read_export(Source(str(file.write(tmp_path / "a.sqlite"))))
    sent = [args for args in trace.comm.values() if args.group == "7"]

    assert [(args.bytes, args.kind) for args in sent] == [(600, "")]


def test_missing_sizes_are_said(tmp_path: Path) -> None:
    """An export without payloads has collectives without bytes, and a note with the command that adds them."""
    run = dptrace.open(training(bytes_=False).write(tmp_path / "a.sqlite"), cache=False)

    assert "--include-blobs" in notes(run)
    assert len(run.collectives()) == 8


def test_one_process_with_several_gpus_is_a_rank_for_each(tmp_path: Path) -> None:
    """As of nccl-tests; the GPUs' order is the ranks'."""
    file = NsightFile()
    for device in (1, 0, 2):
        file.kernel(5, 1, 1_000 + device, 10_000, 20_000 + device, "gemm", device=device)
    run = dptrace.open(file.write(tmp_path / "a.sqlite"), cache=False)

    assert [(timeline.rank, timeline.device, len(timeline)) for timeline in run.timelines] == [
        (rank, rank, 1) for rank in range(3)
    ]


@pytest.mark.heavy
def test_files_of_several_machines_are_one_run(tmp_path: Path) -> None:
    """Each file holds the ranks of a machine: they are numbered in the order of the files."""
    for node in range(2):
        training(ranks=2).write(tmp_path / f"node{node}.sqlite")
    run = dptrace.open(tmp_path, cache=False)

    assert [timeline.rank for timeline in run.timelines] == [0, 1, 2, 3]


def _moved(path: Path, by_ns: int, host: str = "node0") -> None:
    """Write an export of a capture that began later, on a machine of this name."""
    file = training(ranks=2)
    file.rows["TARGET_INFO_SESSION_START_TIME"] = [(EPOCH + by_ns,)]
    file.rows["TARGET_INFO_SYSTEM_ENV"] = [("Hostname", host)]
    file.write(path)


SECOND = 10**9


@pytest.mark.parametrize(("by_ns", "host"), [(10 * SECOND, "node0"), (3600 * SECOND, "node1"), (-3600 * SECOND, "")])
def test_exports_of_two_runs_are_refused(by_ns: int, host: str, tmp_path: Path) -> None:
    """The GPUs of one worked when those of the other had ended: the message names both, in a folder and named."""
    training(ranks=2).write(tmp_path / "before.sqlite")
    _moved(tmp_path / "after.sqlite", by_ns, host)

    for paths in ([tmp_path], [tmp_path / "before.sqlite", tmp_path / "after.sqlite"]):
        with pytest.raises(DptraceError, match=r"are of two runs.*dptrace diff") as raised:
            dptrace.open(*paths, cache=False)
        assert all(name in str(raised.value) for name in ("before.sqlite", "after.sqlite"))


@pytest.mark.heavy
@pytest.mark.parametrize(("by_ns", "host"), [(SECOND // 2, "node0"), (30 * SECOND, "node1")])
def test_exports_of_one_run_may_begin_apart(by_ns: int, host: str, tmp_path: Path) -> None:
    """The clocks of two machines differ, and a process may start late."""
    training(ranks=2).write(tmp_path / "node0.sqlite")
    _moved(tmp_path / "node1.sqlite", by_ns, host)

    assert (0, 1, 2, 3) == dptrace.open(tmp_path, cache=False).ranks


@needs_real_traces
def test_recordings_of_two_runs_in_a_folder_are_refused() -> None:
    """They do not become machines of one run."""
    with pytest.raises(DptraceError, match="are of two runs"):
        find([real("nsys")])


def test_graphs_recorded_as_a_whole_are_compute(tmp_path: Path) -> None:
    """With a note on how to record their kernels."""
    file = training(ranks=1)
    launch = file.call(100, 1, 5_500_000, 5_501_000, "cudaGraphLaunch_v10000")
    file.rows["CUPTI_ACTIVITY_KIND_GRAPH_TRACE"].append((5_510_000, 5_600_000, 0, 7, launch, process_id(100), 4))
    run = dptrace.open(file.write(tmp_path / "a.sqlite"), cache=False)

    assert "CUDA graph 4" in run.timelines[0].names
    assert "--cuda-graph-trace=node" in notes(run)


def test_a_folder_is_read_for_exports_only(tmp_path: Path) -> None:
    """A database of another program is no trace; a report beside its export is the same recording."""
    training(ranks=1).write(tmp_path / "job.sqlite")
    (tmp_path / "job.nsys-rep").write_bytes(b"report")
    with sqlite3.connect(tmp_path / "mlflow.sqlite") as database:
        database.execute("CREATE TABLE runs (id)")
    (tmp_path / "empty.sqlite").write_bytes(b"")
    found = find([str(tmp_path)])

    assert [source.name for source in found.files] == ["job.sqlite"]
    assert not found.notes


@pytest.mark.heavy
def test_a_report_is_exported_where_nsys_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, to the cache; where nsys is not on the path, the error has the command."""
    training(ranks=2).write(tmp_path / "made.db")
    report, nsys, log = tmp_path / "job.nsys-rep", tmp_path / "bin/nsys", tmp_path / "log"
    report.write_bytes(b"report")
    with pytest.raises(DptraceError, match=r"nsys export --type sqlite .*job\.sqlite .*job\.nsys-rep"):
        dptrace.open(report)
    nsys.parent.mkdir()
    script = f'#!/bin/sh\necho "$@" >> {log}\nwhile [ "$1" != --output ]; do shift; done\ncp {tmp_path}/made.db "$2"\n'
    nsys.write_text(script)
    nsys.chmod(0o755)
    monkeypatch.setenv("PATH", f"{nsys.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("DPTRACE_CACHE", str(tmp_path / "cache"))

    assert [2, 2] == [len(dptrace.open(report).timelines) for _ in range(2)]
    assert len(log.read_text().splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "cache", "job.nsys-rep", "log", "made.db"]


def test_a_cut_file_says_what_to_do(tmp_path: Path) -> None:
    """A database that was not copied completely is an error, not a traceback."""
    path = training().write(tmp_path / "a.sqlite")
    path.write_bytes(path.read_bytes()[:9_000])

    with pytest.raises(TraceError, match=r"a\.sqlite: can't be read .*nsys export"):
        dptrace.open(path, cache=False)


def test_what_is_no_export_is_named(tmp_path: Path) -> None:
    """Another program's database, and a file that only has the name of one."""
    with closing(sqlite3.connect(tmp_path / "other.sqlite")) as database:
        database.execute("CREATE TABLE runs (name TEXT)")
    (tmp_path / "text.sqlite").write_text("# notes")

    for name, fact in (("other", "of another program"), ("text", "is no SQLite database")):
        with pytest.raises(TraceError, match=rf"{name}\.sqlite: .*{fact}"):
            dptrace.open(tmp_path / f"{name}.sqlite", cache=False)


@pytest.mark.heavy
def test_damaged_bytes_are_errors_or_values(tmp_path: Path) -> None:
    """Whatever bytes change, a file is read, or named with what to do."""
    whole = training(steps=2).write(tmp_path / "a.sqlite").read_bytes()
    chance, read = random.Random(7), 0
    for _ in range(20):
        damaged = bytearray(whole)
        for _ in range(chance.choice((1, 10, 50))):
            damaged[chance.randrange(100, len(whole))] = chance.randrange(256)
        (tmp_path / "a.sqlite").write_bytes(damaged)
        try:
            read += len(dptrace.open(tmp_path / "a.sqlite", cache=False, jobs=1).timelines)
        except DptraceError as error:
            assert "a.sqlite" in str(error)

    assert read > 4


def test_a_strangers_file_is_only_read(tmp_path: Path) -> None:
    """A view in the place of a table is not used, odd values count as none, and nothing is written."""
    path = training(ranks=1).write(tmp_path / "a.sqlite", ["NVTX_EVENTS", "META_DATA_EXPORT"])
    with sqlite3.connect(path) as database:
        database.execute("CREATE VIEW NVTX_EVENTS AS SELECT 1 AS start, 2 AS end, 59 AS eventType, 'x' AS text")
        row = "('x', NULL, -7, 'y', 9223372036854775807, NULL, 'z', 12, x'00', 1, 1, 1, 1, 1)"
        database.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES {row}")
        database.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL (rowid) VALUES (9223372036854775807)")
        database.execute("UPDATE StringIds SET value = char(27) || '[31m' || value WHERE value LIKE '%gemm%'")
    before = path.read_bytes()
    run = dptrace.open(path, cache=False)

    assert "lacks NVTX_EVENTS" in notes(run)
    assert path.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["a.sqlite"]


@pytest.mark.heavy
def test_questions_to_a_run_are_answered(tmp_path: Path) -> None:
    """Operators with their shapes, launches, findings and a replay work as on a trace of torch.profiler."""
    run = dptrace.open(training().write(tmp_path / "a.sqlite"), cache=False)

    for table in (run.kernel_summary(by="operator-shape"), run.kernel_summary(by="annotation"), run.findings()):
        assert len(table)
    assert dptrace.whatif(run, bandwidth=2) is not None
    assert all((timeline.kind == Kind.COMMUNICATION).any() for timeline in run.timelines)
