"""The zip contains the ranks' original files, byte for byte, and the offsets of their clocks."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import zipfile
from collections.abc import Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
from msgspec.structs import replace

from dptrace.errors import DptraceError
from dptrace.export import zip_bundle
from dptrace.export.tracks import Shift, without_alignment
from dptrace.export.zip_bundle import MANIFEST, write_bundle
from dptrace.run.run import Run
from tests.support.builders import TimelineBuilder


def kineto(base: int | None = 0, last: bool = False, more: int = 0) -> bytes:
    """Make a file whose times count from *base*; the base may stand last."""
    head = "" if base is None else f'"baseTimeNanoseconds": {base}'
    event = json.dumps({"ph": "X", "name": 'a \\"baseTimeNanoseconds": 5 " b', "ts": 1, "dur": 2})
    events = '"traceEvents": [' + ",\n".join([event] * (more + 1)) + "]"
    return ("{" + ", ".join(filter(None, (events, head) if last else (head, events))) + "}").encode()


def bundled(
    files: dict[str, bytes], shifts: Sequence[int] = (), ranks: Sequence[int] = ()
) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Write the files, a rank each, and read back the manifest and what is in the zip."""
    data = written(files, shifts, ranks)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(members.pop(MANIFEST))["perfetto_manifest"]
    assert list(members) == [entry["path"] for entry in manifest["files"]]
    return manifest, members


def written(files: dict[str, bytes], shifts: Sequence[int] = (), ranks: Sequence[int] = ()) -> bytes:
    paths = list(files)
    timelines = tuple(
        replace(TimelineBuilder(rank).compute(0, 9).build(), path=path)
        for rank, path in zip(ranks or range(len(paths)), paths, strict=True)
    )
    run = Run("made", timelines)
    moves = tuple(Shift(rank, by, 1, np.abs if by else None) for rank, by in enumerate(shifts or [0] * len(paths)))
    file = io.BytesIO()
    write_bundle(run, dataclasses.replace(without_alignment(run), shifts=moves), file, opener(files), lambda done: None)
    return file.getvalue()


def opener(files: dict[str, bytes]) -> Any:
    def open_file(path: str) -> BinaryIO:
        return BufferedReader(io.BytesIO(files[path]))

    return open_file


def test_files_are_what_they_were() -> None:
    """A plain file comes back byte for byte, a gzipped one as what it holds: an archive in an archive has no clock."""
    plain, packed = kineto(), kineto(7)

    manifest, members = bundled({"runs/rank0.json": plain, "runs/rank1.json.gz": gzip.compress(packed)})

    assert {"rank0.json": plain, "rank1.json": packed} == members
    assert 1 == manifest["version"]
    assert ["rank 0", "rank 1"] == [entry["machine"]["name"] for entry in manifest["files"]]


def test_offsets_move_each_file_onto_the_clock_of_the_first() -> None:
    """The first file is the reference; the others have their offset to it."""
    manifest, _ = bundled({"a.json": kineto(), "b.json": kineto(), "c.json": kineto()}, shifts=(0, 412_000, 9))

    assert "clocks" not in manifest["files"][0]
    assert [
        {"sync_to": {"file": "a.json"}, "offset_ns": 412_000},
        {"sync_to": {"file": "a.json"}, "offset_ns": 9},
    ] == [entry["clocks"] for entry in manifest["files"][1:]]


@pytest.mark.parametrize("last", [False, True])
def test_files_that_count_from_different_times(last: bool) -> None:
    """Perfetto ignores the base time, so it is added to the offset, wherever in the file it stands."""
    manifest, _ = bundled({"a.json": kineto(100, last), "b.json": kineto(350, last, more=40_000)}, shifts=(0, 5))

    assert 255 == manifest["files"][1]["clocks"]["offset_ns"]


def test_nothing_begins_before_the_first_file_by_name() -> None:
    """Perfetto takes the clock of the first name and drops what is before its zero: no offset is negative."""
    manifest, members = bundled({"rank0.json": kineto(5), "rank1.json": kineto(9), "rank2.json": kineto(2)})

    assert "0-rank2.json" == min(members)
    clocks = {entry["path"]: entry.get("clocks") for entry in manifest["files"]}
    assert clocks["0-rank2.json"] is None
    assert [3, 7] == [clocks[name]["offset_ns"] for name in ("rank0.json", "rank1.json")]
    assert all(clock["sync_to"] == {"file": "0-rank2.json"} for clock in clocks.values() if clock)


def test_packets_have_a_clock_with_a_name() -> None:
    """Perfetto's own files are not pinned but related, by their clock's name."""
    manifest, members = bundled({"a.pftrace": b"\x0a\x02\x50\x01", "b.pftrace": b"\x0a\x02\x50\x01"}, shifts=(0, 40))

    assert {"a.pftrace": b"\x0a\x02\x50\x01", "b.pftrace": b"\x0a\x02\x50\x01"} == members
    assert {
        "clock": "BOOTTIME",
        "sync_to": {"file": "a.pftrace", "clock": "BOOTTIME"},
        "offset_ns": 40,
    } == manifest["files"][1]["clocks"]


HOSTILE = {
    "../../etc/passwd": "passwd",
    "a/rank0.json": "rank0.json",
    "b/rank0.json.gz": "2-rank0.json",
    "c/RANK0.json": "2-RANK0.json",
    "all.zip!.hidden.json": "hidden.json",
    "C:\\räñk 1 ☃.json": "C_r_k_1_.json",
    "wow!.json": "wow_.json",
    "x/perfetto_manifest.json": "2-perfetto_manifest.json",
    "https://host/…": "trace.json",
    "long/" + "n" * 300 + ".json": "n" * 75 + ".json",
}


def test_names_are_unique_and_safe() -> None:
    """No name leads out of the archive, hides, stands for the manifest, differs in case alone, or is not ASCII."""
    _, members = bundled({path: kineto() for path in HOSTILE})

    names = list(members)
    assert len({name.lower() for name in names}) == len(HOSTILE)
    assert all(name.isascii() and name[0].isalnum() and not set(name) & set("/\\:") for name in names)
    assert max(map(len, names)) < 99
    expected = [name.replace("2-RANK0", "3-RANK0") for name in HOSTILE.values()]
    expected[0] = min(names)
    assert expected == names


def test_perfetto_can_read_the_headers() -> None:
    """Its reader knows zip 2.0 without flags: no 64-bit sizes, no UTF-8 names, nothing encrypted."""
    data = written({"a.json": kineto(), "b.json": kineto()})

    assert data.startswith(b"PK\x03\x04")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for entry in archive.infolist():
            header = data[entry.header_offset : entry.header_offset + 30]
            version, flags, method = (int.from_bytes(header[k : k + 2], "little") for k in (4, 6, 8))
            assert (20, 0, zipfile.ZIP_DEFLATED) == (version, flags, method)
            assert 0 == int.from_bytes(header[28:30], "little")


def test_gpus_of_one_file_share_it() -> None:
    """A file with several GPUs goes in once; two files of one rank are two machines."""
    timelines = [replace(TimelineBuilder(k // 2, device=k).compute(0, 9).build(), path="both.json") for k in range(3)]
    timelines.append(replace(TimelineBuilder(0).compute(0, 9).build(), path="again.json"))
    timelines.append(replace(TimelineBuilder(0).compute(0, 9).build(), path="third.json"))
    run = Run("made", tuple(timelines))
    file, progress = io.BytesIO(), list[float]()
    files = {"both.json": kineto(), "again.json": kineto(), "third.json": kineto()}

    names = write_bundle(run, without_alignment(run), file, opener(files), progress.append)

    with zipfile.ZipFile(file) as archive:
        manifest = json.loads(archive.read(MANIFEST))["perfetto_manifest"]
    assert [entry["path"] for entry in manifest["files"]] == names
    assert {"ranks 0, 1", "rank 0", "rank 0 (2)"} == {entry["machine"]["name"] for entry in manifest["files"]}
    assert progress == sorted(progress)
    assert progress[-1] == len(timelines)


def test_the_same_files_give_the_same_bytes() -> None:
    """Neither the hour nor the machine gets into the zip."""
    files = {"a.json": kineto(), "b.json": kineto()}

    assert written(files) == written(files)


def test_a_file_cut_off_is_reported() -> None:
    """Perfetto needs complete files, so one whose compressed data ends early is refused by name."""
    with pytest.raises(DptraceError, match=r"b\.json\.gz: cannot be read to its end .*NAME\.pftrace"):
        written({"a.json": kineto(), "b.json.gz": gzip.compress(kineto(more=5000))[:-200]})


def test_a_file_larger_than_perfetto_takes_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond 2 GB zip needs its 64-bit extension, which Perfetto's reader refuses."""
    monkeypatch.setattr(zip_bundle, "_LARGEST", 2000)

    with pytest.raises(DptraceError, match=r"b\.json: .*2 GB.* NAME\.pftrace"):
        written({"a.json": kineto(), "b.json": kineto(more=100)})


def test_files_are_streamed(tmp_path: Path) -> None:
    """No more than a chunk of a file is held at a time."""
    asked: list[int] = []

    class Endless(io.RawIOBase):
        left = 3 << 20

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            asked.append(len(buffer))
            size = min(len(buffer), self.left)
            self.left -= size
            buffer[:size] = b"[" + b" " * (size - 1) if size else b""
            return size

    run = Run("made", (replace(TimelineBuilder(0).compute(0, 9).build(), path="a.json"),))
    with (tmp_path / "x.zip").open("wb") as file:
        write_bundle(run, without_alignment(run), file, lambda path: BufferedReader(Endless()), lambda done: None)

    assert max(asked) <= 1 << 20
    with zipfile.ZipFile(tmp_path / "x.zip") as archive:
        assert 3 << 20 == archive.getinfo("a.json").file_size
