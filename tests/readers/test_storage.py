"""Traces in archives."""

from __future__ import annotations

import io
import os
import sys
import tarfile
import zipfile
from pathlib import Path
from types import FrameType

import pytest

from dptrace.errors import DptraceError, TraceError
from dptrace.readers.kineto.reader import read_trace
from dptrace.readers.source import Source, from_file_url, is_url, last_part, redact
from dptrace.readers.storage import file_identity, members, open_source
from tests.support.kineto_files import KinetoFile


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    file = KinetoFile(rank=3)
    for k in range(2000):
        file.op(f"op{k}", k, k + 0.5)
    return file.write(tmp_path / "rank3.json")


def zipped(trace: Path, method: int = zipfile.ZIP_DEFLATED) -> Path:
    archive = trace.with_name("all.zip")
    with zipfile.ZipFile(archive, "w", method) as file:
        file.write(trace, "run/rank3.json")
    return archive


def tarred(trace: Path, mode: str = "") -> Path:
    archive = trace.with_name("all.tar" + mode.replace(":", "."))
    with tarfile.open(archive, f"w{mode}") as file:  # type: ignore[call-overload]
        file.add(trace, "run/rank3.json")
    return archive


@pytest.mark.heavy
@pytest.mark.parametrize("pack", [zipped, tarred])
def test_a_member_reads_like_the_file_and_leaves_nothing_unpacked(trace: Path, pack: object) -> None:
    """The trace is the same, under the archive's address, and no file is written."""
    archive = pack(trace)  # type: ignore[operator]
    before = set(trace.parent.iterdir())

    assert ["run/rank3.json"] == members(Source.of(archive))
    inside, outside = read_trace(Source.of(archive).archive_member("run/rank3.json")), read_trace(trace)

    assert f"{archive}!run/rank3.json" == inside.path
    assert (outside.names, outside.start_ns.tolist(), 3) == (inside.names, inside.start_ns.tolist(), inside.rank)
    assert before == set(trace.parent.iterdir())


def test_what_an_archive_can_not_give_is_named(trace: Path, tmp_path: Path) -> None:
    """A compressed tar would decompress all files for its last one; of two members of a name one would be lost."""
    twice = tmp_path / "twice.zip"
    with zipfile.ZipFile(twice, "w") as archive:
        archive.writestr("a.json", "1")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("a.json", "2")

    with pytest.raises(TraceError, match=r"all\.tar\.gz: is a compressed tar archive.*unpack it"):
        members(Source.of(tarred(trace, ":gz")))
    with pytest.raises(TraceError, match=r"holds a\.json more than once"):
        members(Source.of(twice))
    missing = Source.of(zipped(trace)).archive_member("none.json")
    with pytest.raises(TraceError, match=r"all\.zip!none\.json: .*no such file in the archive"), open_source(missing):
        pass


def test_damage_in_an_archive_is_that_of_its_file(trace: Path) -> None:
    """A file with a wrong checksum loses its last bytes, one without a name is left out; an archive needs its end."""
    archive = zipped(trace, zipfile.ZIP_STORED)
    data = bytearray(archive.read_bytes())
    place = data.index(b"op1900")
    data[place : place + 3] = b"xyz"  # the member's checksum no longer fits
    archive.write_bytes(data)

    damaged = read_trace(Source.of(archive).archive_member("run/rank3.json"))

    assert damaged.cut
    assert 1000 < len(damaged) < 1900
    assert "CRC" in str(damaged.damage[0])
    data[data.rindex(b"run/rank3.json")] = 0  # zipfile ends a name at a zero byte
    archive.write_bytes(data)
    assert members(Source.of(archive)) == []
    archive.write_bytes(data[: len(data) // 2])
    with pytest.raises(TraceError, match=r"all\.zip: is not a readable archive"):
        members(Source.of(archive))


def test_encrypted_members_and_bombs_are_refused(trace: Path) -> None:
    """Each error says what to do."""
    archive = zipped(trace)
    data = bytearray(archive.read_bytes())
    central = data.index(b"PK\x01\x02")
    data[central + 8] |= 1
    archive.write_bytes(data)
    with (
        pytest.raises(TraceError, match="is encrypted; unpack the archive with its password"),
        open_source(Source.of(archive).archive_member("run/rank3.json")),
    ):
        pass

    data[central + 8] &= 0xFE
    data[central + 24 : central + 28] = (3 << 30).to_bytes(4, "little")
    archive.write_bytes(data)
    with pytest.raises(TraceError, match="zip bomb"), open_source(Source.of(archive).archive_member("run/rank3.json")):
        pass


def many(folder: Path, count: int, suffix: str) -> Source:
    """Pack many small files."""
    path = folder / f"{count}{suffix}"
    with zipfile.ZipFile(path, "w") if suffix == ".zip" else tarfile.open(path, "w") as archive:
        for number in range(count):
            if isinstance(archive, zipfile.ZipFile):
                archive.writestr(f"{number}.json", f"{number}")
            else:
                info = tarfile.TarInfo(f"{number}.json")
                info.size = len(f"{number}")
                archive.addfile(info, io.BytesIO(f"{number}".encode()))
    return Source.of(path)


@pytest.mark.parametrize("suffix", [".zip", ".tar"])
def test_four_times_as_many_members_cost_four_times_as_much(suffix: str, tmp_path: Path) -> None:
    """The directory of an archive is read once, not once for each member."""

    def calls(count: int) -> int:
        archive, made = many(tmp_path, count, suffix), 0

        def called(frame: FrameType, event: str, argument: object) -> None:
            nonlocal made
            made += 1

        sys.setprofile(called)
        try:
            for name in members(archive):
                with open_source(archive.archive_member(name)) as stream:
                    assert name == f"{stream.read().decode()}.json"
        finally:
            sys.setprofile(None)
        return made

    assert calls(160) < 5 * calls(40)


@pytest.mark.parametrize("suffix", [".zip", ".tar"])
def test_members_are_read_at_the_same_time_and_again_after_a_change(suffix: str, tmp_path: Path) -> None:
    """Two open members of an archive do not disturb each other; what was known of them does not outlive it."""
    archive = many(tmp_path, 101, suffix)
    with open_source(archive.archive_member("99.json")) as one, open_source(archive.archive_member("100.json")) as two:
        assert (b"1", b"9", b"00", b"9") == (two.read(1), one.read(1), two.read(), one.read())

    Path(many(tmp_path, 105, suffix).address).replace(archive.address)

    assert 105 == len(members(archive))
    with open_source(archive.archive_member("104.json")) as stream:
        assert b"104" == stream.read()


# A trace file's address, bytes and identity.


@pytest.mark.parametrize("name", ["missing.json", ".", "a\0b"])
def test_what_cannot_be_opened_is_named(name: str, tmp_path: Path) -> None:
    """Errors of the operating system become TraceErrors."""
    with (
        pytest.raises(TraceError, match=r"missing\.json|folder|can't be read"),
        open_source(Source.of(tmp_path / name)),
    ):
        pass


def test_identity_changes_with_the_file(tmp_path: Path) -> None:
    """A rewritten file has a new identity under any name, and so have its members; only files have one."""
    path = tmp_path / "t.json"
    path.write_bytes(b"1")
    os.utime(path, ns=(1, 1))
    before = file_identity(Source.of(path))
    (tmp_path / "link.json").symlink_to(path)

    assert before is not None
    assert before == file_identity(Source.of(tmp_path / "link.json"))
    os.utime(path, ns=(1, 2))
    assert before != file_identity(Source.of(path))
    assert 2 == len({file_identity(Source.of(path).archive_member(name)) for name in ("a", "b")} - {before, None})
    assert file_identity(Source.of(tmp_path)) is None
    assert file_identity(Source.of(tmp_path / "missing")) is None


def test_what_another_process_opens_is_named_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path becomes absolute, also an archive's; a URL does not change; a pipe is an error."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe.json")

    assert Source(str(tmp_path / "a.json")) == Source("a.json").absolute()
    assert f"{tmp_path}/a.zip!b.json" == Source("a.zip").archive_member("b.json").absolute().address
    assert Source.of("s3://b/a.json") == Source.of("s3://b/a.json").absolute()
    for single_pass in (Source.of("-"), Source("pipe.json")):
        assert single_pass.single_pass
        with pytest.raises(DptraceError, match="is a pipe"):
            single_pass.absolute()


def test_secrets_are_neither_in_the_address_nor_in_what_is_printed() -> None:
    """They are kept to open the file."""
    source = Source.of("https://me:hush@host/all.zip?sig=hush").archive_member("rank0.json")

    assert "https://host/all.zip?sig=…!rank0.json" == source.address
    assert "hush" not in repr(source)
    assert "hush" in source.place
    assert ("rank0.json", True, False) == (source.name, source.remote, source.single_pass)


def test_standard_input_is_read_once_and_left_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its bytes can be peeked at like a file's; a closed stdin or a terminal is an error."""
    (tmp_path / "in").write_bytes(b"0123")
    with (tmp_path / "in").open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        with open_source(Source.of("-")) as stream:
            assert (b"01", b"0123") == (stream.peek(2)[:2], stream.read())
        assert not stdin.closed
        assert file_identity(Source.of("-")) is None
    with pytest.raises(TraceError, match="standard input: is closed"), open_source(Source.of("-")):
        pass
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"9")))
    with open_source(Source.of("-")) as stream:
        assert b"9" == stream.read()


# Addresses, and how they are shown.


def test_urls_and_paths_are_separated() -> None:
    """A scheme of at least two letters makes a URL; a drive letter does not."""
    for text, url in (
        ("s3://bucket/run", True),
        ("simplecache::https://host/a.json", True),
        ("runs/rank0.json", False),
        ("C:/runs/rank0.json", False),
        ("a::b", False),
    ):
        assert url == is_url(text)
        assert from_file_url("s3://bucket/x") is None


def test_secrets_are_never_shown() -> None:
    """Passwords, signatures and tokens are removed; the parts that name the file are kept."""
    for text, clean in (
        ("runs/a?b=c@d", "runs/a?b=c@d"),
        ("https://me:hush@host/r.json", "https://host/r.json"),
        ("https://hush@host/r.json", "https://host/r.json"),
        ("ftp://me:hu@sh@host/r.json", "ftp://host/r.json"),
        ("https://host/r.json?X-Amz-Signature=hush&file=r.json", "https://host/r.json?X-Amz-Signature=…&file=r.json"),
        ("https://host/r.json?hush", "https://host/r.json?…"),
        ("https://host/r.json#access_token=hush", "https://host/r.json"),
        ("https://host/all.zip?sig=hush!rank0.json", "https://host/all.zip?sig=…!rank0.json"),
        ("simplecache::https://me:hush@host/r.json", "simplecache::https://host/r.json"),
        ("zip://r.json::https://host/all.zip?sig=hush", "zip://r.json::https://host/all.zip?sig=…"),
        (
            "abfs://container@account.dfs.core.windows.net/r.json",
            "abfs://container@account.dfs.core.windows.net/r.json",
        ),
        ("s3://bucket/run#1/rank?.json", "s3://bucket/run#1/rank?.json"),
    ):
        assert clean == redact(text)


def test_the_last_part_is_the_file_name() -> None:
    """Whatever precedes it and, over HTTP, follows it."""
    for address, name in (
        ("runs/rank0.json", "rank0.json"),
        ("s3://bucket/run/rank0.json.gz", "rank0.json.gz"),
        ("https://host/a%20b/rank%5B0%5D.json?x=y/z", "rank[0].json"),
        ("simplecache::s3://bucket/rank1.json", "rank1.json"),
        ("https://host/run/", "run"),
    ):
        assert name == last_part(address)
