"""Users' regular expressions: what is refused, and how long a search may take."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dptrace.commands.shared.main import cli
from dptrace.core import patterns
from dptrace.core.patterns import compiled, matches
from dptrace.errors import UsageError
from tests.support.kineto_files import KinetoFile, training_step

ENDLESS = "(.+)+(.+)+zzz$"
"""Tries 2ⁿ ways to match a name of n characters."""
NO_PATTERNS = ("(", "a{99999999999}", "(" * 5000, "(?a)(?u)x")


@pytest.fixture
def trace(tmp_path: Path) -> str:
    return str(training_step(KinetoFile(), 1, 0).write(tmp_path / "rank0.json"))


@pytest.fixture
def few_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a search take 50 ms of processor time."""
    monkeypatch.setattr(patterns, "LIMIT_S", 0.05)


def test_what_is_no_pattern_is_refused() -> None:
    """Syntax, numbers and depths beyond Python's, and what is no text; the message has the option and is short."""
    rows: list[Any] = [*NO_PATTERNS, 5, None, b"a"]
    for pattern in rows:
        with pytest.raises(UsageError, match=r"^--match .{0,200}$"):
            compiled(pattern, "--match")


def test_notation_that_may_change_is_no_warning() -> None:
    """Python's warning about [[ is about dptrace's code, which the user can't change."""
    assert compiled("[[a]", "--match").search("[")


@pytest.mark.spawn
@pytest.mark.parametrize(
    ("pattern", "flags"),
    [("gemm", 0), ("GEMM|copy", re.IGNORECASE), ("(gemm|cop)y?$", 0), ("(?x) g e (m)+", 0), ("e.*m.*_.*b.*t", 0)],
)
def test_a_search_equals_python_s_own(pattern: str, flags: int) -> None:
    """Here and in another process, with repeated names, line breaks and surrogates that no encoding has."""
    names = ["gemm", "copy", "gemm", "gemm_bf16 \udcff e_b\nt", "e.m_bt", "", "µ" * 3000]

    assert [re.search(pattern, name, flags) is not None for name in names] == matches(pattern, names, "--match", flags)


def test_what_may_take_long_is_searched_in_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patterns in which groups repeat or branch, and many repeats; usual ones cost no process."""
    searched: list[str] = []

    def search(text: str, flags: int, names: tuple[str, ...]) -> list[bool]:
        searched.append(text)
        return [False] * len(names)

    monkeypatch.setattr(patterns, "_search_elsewhere", search)
    patterns._search.cache_clear()
    long = [ENDLESS, "(a|a)(a|a)b", ".*" * 9 + "z"]
    for pattern in ("gemm", "nccl.*Reduce|gemm", "void f<4, float>(int)", *long):
        matches(pattern, ["k" * 100], "--match")
    patterns._search.cache_clear()

    assert long == searched


@pytest.mark.spawn
@pytest.mark.usefixtures("few_seconds")
@pytest.mark.parametrize(
    "arguments",
    [
        ("kernels", "--match", ENDLESS),
        ("whatif", "--fuse", ENDLESS),
        ("whatif", "--kernel", f"{ENDLESS}=0.5x"),
        ("analyze", "--comm-pattern", ENDLESS),
    ],
    ids=" ".join,
)
def test_an_endless_search_ends(trace: str, arguments: tuple[str, ...]) -> None:
    """Exit code 2, with the option and the limit, on each verb that takes a pattern."""
    verb, option, value = arguments
    result = CliRunner().invoke(cli, [verb, trace, "--no-cache", option, value])

    assert (2, True, True) == (result.exit_code, option in result.output, "0.05 s" in result.output), result.output


def test_what_is_no_pattern_is_refused_before_the_run_is_read() -> None:
    """Exit code 2 and the option, although the run is missing."""
    options = (("kernels", "--match", ""), ("whatif", "--fuse", ""), ("whatif", "--kernel", "=2x"))
    for verb, option, more in (*options, ("analyze", "--comm-pattern", "")):
        for pattern in NO_PATTERNS:
            result = CliRunner().invoke(cli, [verb, "none.json", option, pattern + more])
            found = result.exit_code, option in result.output, len(result.output) < 400
            assert (2, True, True) == found, result.output


@pytest.mark.spawn
def test_a_search_ends_although_nobody_waits_for_it() -> None:
    """The other process ends itself: by its processor time, not by the process that started it."""
    given = f'["{ENDLESS}", 0, ["{"k" * 60}"], 0.05]'
    code = subprocess.run([sys.executable, "-c", patterns._SEARCH], input=given, text=True, timeout=60).returncode

    assert -signal.SIGPROF == code
