"""Reading dumps, of torch and of NCCL's tools, whole, damaged and hostile."""

from __future__ import annotations

import json
import os
import pickle
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dptrace.commands.shared.main import cli
from dptrace.errors import DptraceError
from dptrace.flight.hang import find_hang
from dptrace.flight.plain_pickle import DamagedPickleError, RefusedPickleError, load_plain
from tests.support.flight_files import call, write
from tests.support.paths import ROOT


def flight(*paths: Path, options: tuple[str, ...] = ("--json",)) -> Result:
    return CliRunner().invoke(cli, ["flight", *map(str, paths), *options])


class Runs:
    """What a hostile pickle holds: a call of a function."""

    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.call[0], self.call[1:]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_that_calls_is_refused(protocol: int, tmp_path: Path) -> None:
    """Nothing runs, the file is named, and good dumps beside it do not hide it."""
    folder = write(tmp_path / "dumps", {0: [call("all_reduce", 1)], 1: [call("all_reduce", 1)]})
    made = tmp_path / "made"
    for what in (Runs(os.mkdir, str(made)), Runs(eval, "1"), Runs(bytearray, 10**9)):
        (folder / "nccl_trace_rank_2").write_bytes(pickle.dumps({"entries": [what]}, protocol))
        done = flight(folder)

        assert (1, False) == (done.exit_code, made.exists())
        assert "nccl_trace_rank_2: refused, and nothing in it was executed" in done.output


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"cos\nsystem\n(S'true'\ntR.", RefusedPickleError),
        (b"\x80\x02(S'true'\nios\nsystem\n.", RefusedPickleError),
        (b"\x80\x02Pid\n.", RefusedPickleError),
        (b"\x80\x02\x82\x01.", RefusedPickleError),
        (b"\x80\x02})" + b"\x85" * 200_000 + b"Ns.", RefusedPickleError),  # its hash overflows the stack of C
        (b"\x80\x04\x8f()" + b"\x85" * 200_000 + b"\x90.", RefusedPickleError),
        (b"\x80\x04\x8e" + b"\xff" * 7 + b"\x0fabc.", DamagedPickleError),  # 2^60 bytes that do not come
        (b"\x80\x04\x95" + b"\xff" * 7 + b"\x0fabc.", DamagedPickleError),
        (b"\x80\x02h\x07.", DamagedPickleError),
        (b"\x80\x02]K\x01K\x02u.", DamagedPickleError),
        (b"\x80\x02}]Ns.", DamagedPickleError),
    ],
)
def test_opcodes_beyond_plain_data_are_refused(data: bytes, error: type[Exception]) -> None:
    """Those that import, call, refer or nest without end; and lengths are not believed."""
    with pytest.raises(error):
        load_plain(data)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
)


@pytest.mark.slow
@given(PLAIN, st.sampled_from([4, 5]))
def test_plain_data_come_back(value: object, protocol: int) -> None:
    """As Python's own unpickler returns them."""
    assert value == load_plain(pickle.dumps(value, protocol))


@pytest.mark.heavy
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(st.data())
def test_damage_is_an_error_with_a_sentence(tmp_path: Path, data: st.DataObject) -> None:
    """Whatever bytes of a dump change, the answer or one sentence comes; no other exception."""
    folder = write(tmp_path / "dumps", {0: [call("all_reduce", 1)], 1: [call("all_reduce", 1, "started")]})
    path = data.draw(st.sampled_from(sorted(folder.iterdir())))
    whole = path.read_bytes()
    at = data.draw(st.integers(0, len(whole) - 1))
    path.write_bytes(whole[:at] + data.draw(st.binary(max_size=3)) + whole[at + data.draw(st.integers(0, 3)) :])
    try:
        find_hang([folder])
    except DptraceError as error:
        assert str(path) in str(error)
    path.write_bytes(whole)


@pytest.mark.heavy
def test_a_dump_may_end_anywhere(tmp_path: Path) -> None:
    """Wherever a pickle is cut, a note names it, and the other rank's dump is read."""
    waiting = [call("all_reduce", 1, "started")]
    folder = write(tmp_path / "dumps", {0: waiting, 1: waiting})
    path = folder / "nccl_trace_rank_0"
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        content = find_hang([folder])

        assert [0] == content["culprits"], length
        assert any(str(path) in note for note in content["notes"]), length


@pytest.mark.parametrize("name", ["process_group", "profiling_name", "input_sizes", "frames", "state", "input_dtypes"])
@pytest.mark.parametrize("value", [None, 7, [[]], [{}, 3], {"a": []}, "x" * 10**6, [[10**30]], [[[[]]]]])
def test_values_of_any_type_are_read(name: str, value: object, tmp_path: Path) -> None:
    """A value that torch does not write is left out, or refused with a sentence."""
    done = flight(write(tmp_path / "dumps", {0: [call("all_reduce", 1) | {name: value}]}), options=())

    assert done.exit_code == 0 or "not those of the flight recorder" in done.output
    assert len(done.output) < 10_000


def test_a_rank_whose_dump_is_damaged_counts_as_one_without(tmp_path: Path) -> None:
    """Empty and truncated files are noted, and the others are read; where none is whole, that is the error."""
    waiting = [call("all_reduce", 1, "started")]
    folder = write(tmp_path / "dumps", {0: waiting, 1: waiting, 2: waiting, 3: waiting})
    (folder / "nccl_trace_rank_2").write_bytes(b"")
    (folder / "rank_3.json").write_text((folder / "rank_3.json").read_text()[:-50])
    (folder / "notes.txt").write_text("of no interest")

    content = json.loads(flight(folder).stdout)
    assert [2, 3] == content["culprits"]
    assert content["verdict"].endswith("Ranks 2, 3 left a damaged dump.")
    assert not any("left no dump" in text for text in (*content["notes"], content["verdict"]))
    assert all(any(word in note for note in content["notes"]) for word in ("rank_2: is empty", "rank_3.json: is trunc"))
    for path in (folder / "nccl_trace_rank_0", folder / "rank_1.json"):
        path.unlink()
    assert (1, True) == ((done := flight(folder)).exit_code, "is empty" in done.output)


def test_what_can_not_be_used_is_named(tmp_path: Path) -> None:
    """A second dump of a rank, a file without a rank in its name or that is no dump, a missing one, an empty folder."""
    folder = write(tmp_path / "dumps", {0: [call("all_reduce", 1)]})
    for name in ("again_rank_0_1795732137", "without"):
        shutil.copy(folder / "nccl_trace_rank_0", tmp_path / name)
    (tmp_path / "trace.json").write_text('{"traceEvents": []}')
    (tmp_path / "empty").mkdir()
    write(tmp_path / "foreign", {0: [{"foo": 1}, {}]})
    for paths, fact in {
        ("dumps", "again_rank_0_1795732137"): "a second dump of rank 0",
        ("without",): "must end in the rank",
        ("trace.json",): "is no dump",
        ("none",): "no such file",
        ("foreign",): "not those of the flight recorder",
        ("empty",): "holds no dump",
    }.items():
        done = flight(*(tmp_path / path for path in paths))

        assert (1, True) == (done.exit_code, fact in done.output), done.output


RAS = {
    "nccl_version": "2.28.7",
    "communicators": [
        {
            "hash": "0xa1",
            "secondary_hash": "0xb2:0xc3",
            "ranks": [
                {"rank": rank, "host": "10.0.0.1", "pid": 100 + rank,
                 "collective_counts": {"Broadcast": 1, "AllReduce": 57 - (rank == 1)}}
                for rank in range(3)
            ],
            "missing_ranks": [
                {"rank": 3, "host": "10.0.0.2", "pid": 7, "status": {"unresponsive": True, "considered_dead": False}}
            ],
        }
    ],
}  # fmt: skip


def test_nccls_own_tools_tell_who_is_behind(tmp_path: Path) -> None:
    """RAS counts what ranks have begun, and who is silent; the Inspector what they completed, the last line cut."""
    ras, logs = tmp_path / "ras.json", tmp_path / "inspector"
    ras.write_text(json.dumps(RAS))
    logs.mkdir()
    for rank in range(3):
        lines = [
            {"header": {"id": "0xa1", "rank": rank, "n_ranks": 3}, "metadata": {"hostname": "n", "pid": rank},
             "coll_perf": {"coll": "AllReduce", "coll_sn": number}}
            for number in range(9 - (rank == 2))
        ]  # fmt: skip
        (logs / f"n-pid{rank}.log").write_text("\n".join(map(json.dumps, lines)) + '\n{"header": {"id"')

    by_ras, by_inspector = (json.loads(flight(path).stdout) for path in (ras, logs))
    assert ([1, 3], [2]) == (by_ras["culprits"], by_inspector["culprits"])
    assert "rank 3 does not respond (10.0.0.2, process 7)." in by_ras["verdict"]
    assert "ranks 0, 2 began collective 57 (AllReduce), rank 1 only 56." in by_ras["verdict"]
    assert "ranks 0, 1 completed collective 8 (AllReduce), rank 2 only 7." in by_inspector["verdict"]
    wide = CliRunner(env={"COLUMNS": "132"}).invoke(cli, ["flight", str(ras)])
    assert "57 AllReduce" in wide.output
    assert (1, True) == ((done := flight(ras, logs)).exit_code, "give those of one" in done.output)


def test_dumps_in_zip_files_are_read(tmp_path: Path) -> None:
    """One file, and one for each machine in a folder; a damaged one, and a bomb, are named and harm nothing."""
    dumps = {rank: [call("all_reduce", 1), call("all_reduce", 2, "started")] for rank in range(4)}
    dumps[3].pop()
    folder = write(tmp_path / "dumps", dumps)
    archive = Path(shutil.make_archive(str(tmp_path / "all"), "zip", tmp_path, "dumps"))
    for number in range(2):
        node = tmp_path / f"node{number}"
        node.mkdir()
        for path in sorted(folder.iterdir())[2 * number : 2 * number + 2]:
            shutil.copy(path, node)
        shutil.make_archive(str(tmp_path / "machines" / f"node{number}"), "zip", node)
    expected = find_hang([folder])
    assert expected == find_hang(folder) == find_hang(str(folder))

    for given_path in (archive, tmp_path / "machines"):
        assert (expected["verdict"], [3]) == (find_hang([given_path])["verdict"], find_hang([given_path])["culprits"])
    whole = archive.read_bytes()
    for length in (0, 10, len(whole) // 2, len(whole) - 30):
        archive.write_bytes(whole[:length])
        done = flight(archive)
        assert (1, True) == (done.exit_code, "all.zip" in done.output), length
    (tmp_path / "nothing").mkdir()
    empty = Path(shutil.make_archive(str(tmp_path / "empty"), "zip", tmp_path / "nothing"))
    assert "holds no dump" in flight(empty).output


REAL = sorted(
    path.parent
    for path in (ROOT.parent / "shared" / "inputs" / "flight").glob("*/*0")
    if path.name in ("nccl_trace_rank_0", "_dump_0")
)


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="the dumps of others are not here")
def test_no_cut_of_a_dump_is_an_error_of_dptrace(tmp_path: Path) -> None:
    """Of real dumps: each rank's cut anywhere is a rank without a dump, or the file is named; a byte changed, too."""
    chance = random.Random(0)
    for folder in REAL:
        files = [path for path in folder.iterdir() if path.suffix != ".log"]
        for _ in range(12):
            copy = tmp_path / "copy"
            shutil.copytree(folder, copy)
            victim = copy / chance.choice(files).name
            victim.chmod(0o644)
            data = bytearray(victim.read_bytes())
            if chance.random() < 0.6:
                del data[chance.randrange(len(data)) :]
            else:
                data[chance.randrange(len(data))] = chance.randrange(256)
            victim.write_bytes(data)
            try:
                find_hang([copy])
            except DptraceError as error:
                assert victim.name in str(error)
            shutil.rmtree(copy)
