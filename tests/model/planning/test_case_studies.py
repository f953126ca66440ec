"""The case studies: each command of the page runs, and each value in its tables is what the command prints."""

from __future__ import annotations

import contextlib
import io
import json
import re
import shlex
from typing import Any

import pytest
from click.testing import CliRunner

from dptrace.commands.shared.main import cli
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "guides" / "case-studies.md").read_text(encoding="utf-8")
_CASE = re.compile(r"(?<!-->\n)```bash\n(dptrace [^\n]+)\n```\n\n\| Figure[^\n]*\n\|[^\n]*\n((?:\|[^\n]*\n)+)")
_EXAMPLE = re.compile(r"```python\n(.*?)```\n\n```text\n(.*?)```", re.DOTALL)
CASES = _CASE.findall(PAGE)
UNITS = {"": 1.0, "MB": 1e6, "GB": 1e9, "TB": 1e12, "billion": 1e9, "%": 0.01, "days": 1.0}


def value_at(content: Any, path: str) -> float:
    """Return a number of a JSON document: keys after points; in brackets, what a part of a list is called."""
    for key, what in re.findall(r"([\w]+)(?:\[([^\]]+)\])?", path):
        content = content[key]
        if what:
            (content,) = [part for part in content if part["what"] == what]
    return float(content)


def test_the_page_has_its_cases() -> None:
    """An edit of the marks must not make the tests below empty."""
    assert len(CASES) == 10
    assert 20 <= sum(len(rows.splitlines()) for _, rows in CASES)
    assert len(_EXAMPLE.findall(PAGE)) == 2


@pytest.mark.parametrize(("command", "rows"), CASES, ids=lambda text: text[:40].replace(" ", "_"))
def test_each_value_is_what_the_command_prints(command: str, rows: str) -> None:
    """To the last digit that the table has."""
    done = CliRunner().invoke(cli, [*shlex.split(command)[1:], "--json"])
    assert done.exit_code == 0, done.output
    content = json.loads(done.stdout)
    for row in rows.splitlines():
        _, path, shown = (cell.strip() for cell in row.strip("|").split("|")[:3])
        digits, _, unit = shown.partition(" ")
        last = 10 ** -len(digits.partition(".")[2])
        assert pytest.approx(float(digits), abs=0.51 * last) == value_at(content, path.strip("`")) / UNITS[unit], row


@pytest.mark.parametrize(("code", "printed"), _EXAMPLE.findall(PAGE))
def test_the_examples_print_what_the_page_shows(code: str, printed: str) -> None:
    """As someone who copies them sees it."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(code, {})

    assert printed == out.getvalue()
