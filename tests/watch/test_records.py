"""The files of a watch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dptrace.commands.shared.main import cli
from dptrace.errors import UsageError
from dptrace.watch.folder import check_folder
from dptrace.watch.records import HEADER, STEP, STEP_TYPE, Appended, Tail, rank_files, read
from dptrace.watch.verdict import lines
from tests.support.watch_records import Job, summarized


def record(number: int) -> bytes:
    return STEP.pack(number, 0, number, number + 1, *range(5), *range(5), 0, 0)


def test_a_frame_is_one_line(tmp_path: Path) -> None:
    """Pandas reads the records after the header; the columns say what they are."""
    import pandas

    Job("ddp", 2).run(5).write(tmp_path)
    frame = pandas.DataFrame(np.fromfile(tmp_path / "rank0001.steps", STEP_TYPE, offset=4096))

    assert [0, 1, 2, 3, 4] == frame["step"].tolist()
    assert 9e6 == pytest.approx(frame["forward_ns"].mean(), rel=0.1)


def test_half_a_record_at_the_end_is_left_out(tmp_path: Path) -> None:
    """What a killed rank was writing is no record."""
    file = Appended(tmp_path / "rank0000.steps", {"rank": 0})
    file.write(record(1) + record(2) + record(3)[:50])

    assert [1, 2] == read(file.path)["step"].tolist()


def test_a_full_file_begins_anew_and_a_reader_follows(tmp_path: Path) -> None:
    """A reader sees each record once, also across the change; the disk holds two files at most."""
    path = tmp_path / "rank0000.steps"
    file = Appended(path, {}, limit=HEADER + 3 * STEP.size)
    tail = Tail(path)
    seen = []
    for number in range(8):
        file.write(record(number))
        seen += tail.read()["step"].tolist()

    assert list(range(8)) == seen
    assert 2 == len(list(tmp_path.iterdir()))


@pytest.mark.parametrize("path", ["/dev/full", "missing/rank0000.steps"])
def test_a_file_that_cannot_be_written_says_so_once_and_raises_nothing(path: str, tmp_path: Path) -> None:
    """A full disk, and a folder that is gone."""
    file = Appended(tmp_path / path, {})
    file.write(record(1))
    file.write(record(2))

    assert file.error


def test_a_folder_with_other_files_is_not_touched(tmp_path: Path) -> None:
    """Force replaces a watch, what its launcher has left of one that failed, and nothing else."""
    (tmp_path / "job.failed").mkdir()
    with pytest.raises(UsageError, match="--force"):
        check_folder(tmp_path, force=False)
    check_folder(tmp_path, force=True)
    assert not [*tmp_path.iterdir()]
    Job("ddp", 2).run(5).write(tmp_path)
    with pytest.raises(UsageError, match=r"^((?! -o|--force).)*$"):  # from Python, where these can't be given
        check_folder(tmp_path)
    (tmp_path / "mine.txt").touch()
    with pytest.raises(UsageError, match=r"mine\.txt"):
        check_folder(tmp_path, force=True)

    assert (tmp_path / "mine.txt").exists()
    assert {0, 1} == rank_files(tmp_path)[0].keys()


_HEADERS: dict[str, Callable[[bytes], bytes]] = {
    "random": lambda text: b"\x93\x00\xfe{}\x01\x02",
    "empty": lambda text: b"",
    "cut in the header": lambda text: text[:2000],
    "cut at its last byte": lambda text: text[:4095],
    "big-endian": lambda text: text.replace(b'"<u4"', b'">u4"'),
    "another version": lambda text: text.replace(b"dptrace-watch 1", b"dptrace-watch 9"),
    "not JSON": lambda text: b"[" + text[1:],
    "a list": lambda text: b"[]".ljust(4096) + text[4096:],
    "a value of another type": lambda text: text.replace(b'"rank": 1', b'"rank":"'),
    "the number of another rank": lambda text: text.replace(b'"rank": 1', b'"rank": 0'),
}


@pytest.mark.parametrize("kind", ["steps", "calls"])
@pytest.mark.parametrize("damage", _HEADERS)
def test_a_rank_whose_header_is_damaged_is_left_out_and_named(damage: str, kind: str, tmp_path: Path) -> None:
    """No figure comes from its files; the verdict says which file it is."""
    Job("ddp", 2).run(30).write(tmp_path)
    path = tmp_path / f"rank0001.{kind}"
    path.write_bytes(_HEADERS[damage](path.read_bytes()))
    content = summarized(tmp_path)

    assert (1, 26) == (content["ranks"], content["steps"])
    assert "rank0001" in content["file_notes"][0]
    assert "1 of 2 ranks" in "\n".join(lines(content))
    assert "files   rank0001" in "\n".join(lines(content))


@pytest.mark.parametrize(("ranks", "who"), [(2, "rank 0"), (4, "the other 3")])
def test_a_rank_whose_others_have_no_files_is_not_alone(ranks: int, who: str, tmp_path: Path) -> None:
    """Who was late is unknown because files are missing or damaged, not because no rank waits; the first is named."""
    Job("ddp", ranks).run(30).write(tmp_path)
    for rank in range(ranks - 1):
        (tmp_path / f"rank{rank:04}.steps").unlink()
    content = summarized(tmp_path)

    assert f"{ranks} ranks, and the files of {who} are missing" in content["cannot_tell"]
    assert content["file_notes"][0].startswith("rank0000.steps is not here")


@pytest.mark.parametrize(
    ("kept", "rest", "steps"),
    [
        (0, b"", 0),
        (0, bytes(range(1, 121)) * 5, 0),
        (9, bytes(120 * 5), 9),
        (9, bytes(60), 9),
        (9, bytes(range(1, 121)) * 5, 9),
        (9.5, bytes(120 * 5), 9),
        (9 + 104 / 120, bytes(range(1, 121)) * 5, 9),
        (9 + 112 / 120, bytes(range(1, 121)) * 5, 9),
        (29.5, b"", 29),
    ],
)
def test_steps_before_damage_count(kept: float, rest: bytes, steps: int, tmp_path: Path) -> None:
    """Zeros after a power failure, noise, also from within a record, and half a record end a file; the rest counts."""
    Job("ddp", 2).run(30).write(tmp_path)
    path = tmp_path / "rank0001.steps"
    path.write_bytes(path.read_bytes()[: 4096 + round(120 * kept)] + rest)
    content = summarized(tmp_path)

    assert max(0, steps - 4) == content["steps"]
    assert content["file_notes"]
    assert 26e6 < content["step_ns"]["median"] < 31e6 or not content["steps"]


@pytest.mark.parametrize(("kept", "rest"), [(9.5, bytes(400)), (9.5, bytes(40)), (9, bytes(range(160, 0, -1)) * 2)])
def test_calls_that_none_can_be_do_not_count(kept: float, rest: bytes, tmp_path: Path) -> None:
    """Half a call and zeros look like one, but for the rank's own time, which never shrinks."""
    Job("ddp", 2).run(30).write(tmp_path)
    path = tmp_path / "rank0001.calls"
    path.write_bytes(path.read_bytes()[: 4096 + int(80 * kept)] + rest)
    content = summarized(tmp_path)

    assert ["rank0001.calls is damaged after 9 whole records"] == content["file_notes"]
    assert 26 == content["steps"]


def test_a_missing_record_ends_what_is_read(tmp_path: Path) -> None:
    """Steps after a gap would be others than those of the other ranks."""
    Job("ddp", 2).run(30).write(tmp_path)
    path = tmp_path / "rank0000.steps"
    text = path.read_bytes()
    path.write_bytes(text[: 4096 + 1200] + text[4096 + 1320 :])

    assert "rank0000.steps is damaged after 10 whole records" == summarized(tmp_path)["file_notes"][0]


def test_files_of_two_jobs_are_not_one(tmp_path: Path) -> None:
    """A rank that says that its job has another number of ranks is left out."""
    Job("ddp", 2).run(30).write(tmp_path)
    Job("ddp", 4).run(30).write(tmp_path / "other")
    for kind in ("steps", "calls"):
        (tmp_path / "other" / f"rank0003.{kind}").rename(tmp_path / f"rank0003.{kind}")
    content = summarized(tmp_path)

    assert (2, 2) == (content["ranks"], content["world_size"])
    assert ["rank0003.steps is of a job of 4 ranks, others here are of 2"] == content["file_notes"]


def test_a_folder_of_which_nothing_can_be_read_says_why(tmp_path: Path) -> None:
    """The first file and its fault, and exit code 1."""
    (tmp_path / "rank0000.steps").write_bytes(b"1234567")
    result = CliRunner().invoke(cli, ["watch", str(tmp_path)])

    assert 1 == result.exit_code
    assert "rank0000.steps ends in its header, after 7 of 4,096 bytes" in result.output
