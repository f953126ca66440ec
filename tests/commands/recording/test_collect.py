"""dptrace collect, as typed."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from dptrace.commands.shared.main import cli
from tests.support.run_parts import write_part


def test_it_says_what_was_written_what_is_missing_and_what_next(tmp_path: Path) -> None:
    """The ranks are counted, missing ones named, and the next command is printed; -q prints nothing."""
    one, two = write_part(tmp_path / "one", range(2)), write_part(tmp_path / "two", range(2, 3))
    done = CliRunner().invoke(cli, ["collect", str(tmp_path / "all"), str(one), str(two)])

    assert 0 == done.exit_code
    assert f"Wrote {tmp_path / 'all'}: 3 ranks of 4; missing: 3." in done.output
    assert f"dptrace analyze {tmp_path / 'all'}" in done.output
    assert "" == CliRunner().invoke(cli, ["collect", "-q", str(tmp_path / "quiet"), str(one)]).output


def test_wrong_use_and_bad_input_have_their_exit_codes(tmp_path: Path) -> None:
    """2 for a folder that exists, 1 for parts of two jobs."""
    one, two = write_part(tmp_path / "one", range(2)), write_part(tmp_path / "two", range(2, 4), mode="fsdp")

    assert 2 == CliRunner().invoke(cli, ["collect", str(one), str(one)]).exit_code
    refused = CliRunner().invoke(cli, ["collect", str(tmp_path / "all"), str(one), str(two)])
    assert (1, True) == (refused.exit_code, "not of one job: mode ddp, not fsdp" in refused.output)
