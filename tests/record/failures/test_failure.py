"""Find the rank that failed first."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dptrace.record.failures.failure import Failure, find_failure, last_lines


def _write_message(
    folder: Path, rank: int, time_ns: int, message: str, advice: bool = False, exit_code: int = 1
) -> None:
    content = {"rank": rank, "time_ns": time_ns, "message": message, "advice": advice, "exit_code": exit_code}
    (folder / f"rank{rank}.failure.json").write_text(json.dumps(content))


def _exits(folder: Path, *codes: tuple[int, int]) -> None:
    exits = [{"rank": rank, "exit_code": code} for rank, code in codes]
    (folder / "agent0.json").write_text(json.dumps(exits))


def test_the_cause_comes_before_its_consequence(tmp_path: Path) -> None:
    """Both ranks exit within one polling interval of torchrun; their own timestamps show which was first."""
    _exits(tmp_path, (0, 1), (1, 1))
    _write_message(tmp_path, 0, 2000, "RuntimeError: Connection closed by peer")
    _write_message(tmp_path, 1, 1000, "ValueError: boom")

    assert Failure(1, "ValueError: boom") == find_failure(tmp_path)


def test_a_killed_rank_leaves_no_note_and_is_still_the_first(tmp_path: Path) -> None:
    """SIGKILL precedes the error that a peer reports; SIGTERM only means that torchrun stops the peers."""
    _exits(tmp_path, (0, -15), (1, 1), (2, -9))
    _write_message(tmp_path, 1, 1000, "RuntimeError: Connection closed by peer")

    assert Failure(2, "killed by SIGKILL (out of memory?)") == find_failure(tmp_path)


def test_without_a_note_the_exit_code_shows(tmp_path: Path) -> None:
    """A rank that ends with os._exit(3) leaves no message."""
    assert find_failure(tmp_path) is None
    _exits(tmp_path, (1, 3))

    assert Failure(1, "exit code 3") == find_failure(tmp_path)


def test_advice_of_a_rank_keeps_its_exit_code(tmp_path: Path) -> None:
    """A usage error that only a rank can detect is reported as one."""
    _write_message(tmp_path, 0, 1, "use another batch size", advice=True, exit_code=2)

    assert Failure(0, "use another batch size", 2, True) == find_failure(tmp_path)


def test_the_last_lines_leave_out_kinetos_own_output(tmp_path: Path) -> None:
    """A rank without output has none."""
    (tmp_path / "rank3.log").write_text("said\nUSDT: noise\ncried\n")

    assert ["said", "cried"] == last_lines(tmp_path / "rank3.log").split()[-2:]
    assert "" == last_lines(tmp_path / "rank2.log")


def test_a_rank_that_left_silently_is_the_cause_of_its_peers_error(tmp_path: Path) -> None:
    """Its heartbeat says that it has ended, before the other failed for want of it; an error of its own goes first."""
    _exits(tmp_path, (0, 1))
    (tmp_path / "rank1.steps").write_text("5 0 -1 0")
    (tmp_path / "rank0.steps").write_text("5 0 2 9")
    later = (tmp_path / "rank1.steps").stat().st_mtime_ns + 1
    _write_message(tmp_path, 0, later, "RuntimeError: Connection closed by peer")
    failure = find_failure(tmp_path)
    assert failure is not None
    assert failure.message.startswith("rank 1 ended without an error first, after 5 steps")

    _write_message(tmp_path, 0, later, "ValueError: boom")
    assert Failure(0, "ValueError: boom") == find_failure(tmp_path)


@pytest.mark.parametrize(
    ("message", "culprit"),
    [("ValueError: bad batch", 1), ("RuntimeError: Connection reset by peer", 0)],
)
def test_an_abort_is_a_cause_only_where_no_rank_shows_another(tmp_path: Path, message: str, culprit: int) -> None:
    """NCCL's watchdog aborts the peers of a rank that raised; a rank that aborts itself resets its peers."""
    _exits(tmp_path, (1, 1), (0, -6))
    _write_message(tmp_path, 1, 1000, message)

    failure = find_failure(tmp_path)
    assert failure is not None
    assert culprit == failure.rank


@pytest.mark.parametrize("number", [9, 11])
def test_a_rank_that_was_killed_is_the_cause_whatever_peers_say(tmp_path: Path, number: int) -> None:
    """SIGKILL and SIGSEGV have no cause in a peer; the peers' connection errors follow from them."""
    _exits(tmp_path, (1, 1), (0, -number))
    _write_message(tmp_path, 1, 1000, "RuntimeError: Connection reset by peer")

    failure = find_failure(tmp_path)
    assert failure is not None
    assert 0 == failure.rank
