"""Parts of a run are found in folders and archives; what is none of them is refused in one sentence."""

from __future__ import annotations

import io
import json
import os
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

from dptrace.errors import DptraceError
from dptrace.record.collect import parts as parts_module
from dptrace.record.collect.parts import find_parts
from tests.support.run_parts import write_part


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """Return an empty folder."""
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


@pytest.mark.parametrize("kind", ["tar", "gztar", "zip"])
def test_archives_and_folders_of_parts_are_searched(kind: str, tmp_path: Path, scratch: Path) -> None:
    """A folder with the parts of two machines, and an archive of it, hold both."""
    for machine in range(2):
        write_part(tmp_path / "both" / f"host{machine}", range(2 * machine, 2 * machine + 2))
    archive = Path(shutil.make_archive(str(tmp_path / "packed"), kind, tmp_path, "both"))

    for source in (tmp_path / "both", archive):
        found = find_parts(source, scratch)
        assert [[0, 1], [2, 3]] == [[entry["rank"] for entry in part.metadata["ranks"]] for part in found]
        assert [2, 2] == [len(part.files) for part in found]


def test_an_archive_writes_nothing_outside_and_nothing_else(tmp_path: Path, scratch: Path) -> None:
    """Names that climb out stay inside; scripts and links are not unpacked."""
    run = (write_part(tmp_path / "part", range(2)) / "run.json").read_bytes()
    with tarfile.open(tmp_path / "evil.tar", "w") as tape:
        for name in ("../../out/run.json", "x/evil.sh"):
            member = tarfile.TarInfo(name)
            member.size = len(run)
            tape.addfile(member, io.BytesIO(run))
        link = tarfile.TarInfo("x/rank0.pt.trace.json.gz")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tape.addfile(link)
    with pytest.raises(DptraceError, match="trace of rank 0 is missing"):
        find_parts(tmp_path / "evil.tar", scratch)
    assert ["out/run.json"] == [str(p.relative_to(scratch)) for p in scratch.rglob("*") if p.is_file()]


def test_a_byte_order_mark_is_no_damage(tmp_path: Path, scratch: Path) -> None:
    """Editors on Windows write one at the beginning of run.json."""
    path = write_part(tmp_path / "part", range(2)) / "run.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())

    assert [2] == [len(part.metadata["ranks"]) for part in find_parts(path.parent, scratch)]


def test_what_is_no_part_is_reported_in_one_line(tmp_path: Path, scratch: Path) -> None:
    """A missing folder, one on another machine, one without run.json, a text, and a damaged run.json."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("no archive")
    damaged = write_part(tmp_path / "damaged", range(2))
    for path, says in (
        (tmp_path / "nowhere", "does not exist"),
        (Path("host1:runs/ddp"), "scp -r host1:runs/ddp"),
        (tmp_path / "empty", r"holds no run\.json"),
        (tmp_path / "text", "neither a folder nor"),
    ):
        with pytest.raises(DptraceError, match=says) as error:
            find_parts(path, scratch)
        assert "\n" not in str(error.value)
    for content in ("[" * 100_000, "[]", '{"ranks": [{}]}', '{"ranks": [], "notes": 3}', '{"ranks": [], "failure": 1}'):
        (damaged / "run.json").write_text(content)
        with pytest.raises(DptraceError, match="is not one of dptrace record, or incomplete"):
            find_parts(damaged, scratch)


def test_a_trace_that_was_not_copied_is_reported(tmp_path: Path, scratch: Path) -> None:
    """run.json lists a rank whose file is missing, or one with a path of its own."""
    part = write_part(tmp_path / "part", range(2))
    content = json.loads((part / "run.json").read_text())
    os.unlink(part / "rank1.pt.trace.json.gz")
    with pytest.raises(DptraceError, match="rank 1 is missing"):
        find_parts(part, scratch)
    content["ranks"][1]["file"] = "../../../etc/passwd"
    (part / "run.json").write_text(json.dumps(content))
    with pytest.raises(DptraceError, match="rank 1 is missing"):
        find_parts(part, scratch)


def test_an_archive_that_grows_without_end_is_stopped(
    tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Traces are compressed already: what grows much more is refused and removed."""
    monkeypatch.setattr(parts_module, "_ALWAYS_ALLOWED", 1000)
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("run/rank0.pt.trace.json.gz", bytes(1 << 22))
    with pytest.raises(DptraceError, match="grows more than 20 times"):
        find_parts(tmp_path / "bomb.zip", scratch)


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_an_archive_with_damaged_data_is_refused(method: int, tmp_path: Path, scratch: Path) -> None:
    """In one line, whatever the compression."""
    path = tmp_path / "damaged.zip"
    with zipfile.ZipFile(path, "w", method) as packed:
        packed.writestr("run/rank0.pt.trace.json.gz", bytes(range(256)) * 1000)
    data = path.read_bytes()
    path.write_bytes(data[:80] + bytes(40) + data[120:])

    with pytest.raises(DptraceError, match=r"damaged\.zip: "):
        find_parts(path, scratch)
