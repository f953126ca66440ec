"""`dptrace explain`."""

from __future__ import annotations

import json
import re
from pathlib import Path

from click.testing import CliRunner, Result

from dptrace.commands.explain import command
from dptrace.commands.shared.main import cli
from tests.support.paths import ROOT


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["explain", *arguments], catch_exceptions=False)


def test_json_is_complete_and_goes_to_a_file(tmp_path: Path) -> None:
    """Every message has its ends, its numbers and its bytes."""
    path = tmp_path / "ring.json"
    printed = json.loads(run("ring", "--ranks", "3", "--json").stdout)

    assert 0 == run("ring", "--ranks", "3", "--json", "-o", str(path)).exit_code
    assert printed == json.loads(path.read_text())
    first = printed["steps"][0]["messages"][0]
    assert (0, 1, "A0", [10.0]) == (first["source"], first["target"], first["label"], first["values"])
    assert [1] == [step["number"] for step in json.loads(run("ring", "--json", "--step", "1").stdout)["steps"]]


def test_a_page_is_written_once(tmp_path: Path) -> None:
    """It is not overwritten without --force."""
    path = tmp_path / "tree.html"

    assert 0 == run("tree", "-o", str(path)).exit_code
    assert "<svg" in path.read_text()
    assert 0 != run("tree", "-o", str(path)).exit_code
    assert 0 == run("tree", "-o", str(path), "--step", "2", "--force").exit_code
    assert 'data-step="2"' in path.read_text()


def test_sizes_are_decimal_unless_they_say_otherwise() -> None:
    """As the figures that are printed, and as the documents count."""
    for text, size in (
        ("4096", 4096),
        ("208MB", 208e6),
        ("25MiB", 25 * 2**20),
        ("1.5GB", 1.5e9),
        ("64k", 64e3),
        ("64KiB", 65536),
    ):
        found = json.loads(run("ring", "--bytes", text, "--json").stdout)["cost"]["size_bytes"]

        assert size == found, (text, size)
        assert "size_bytes" in {param.name for param in command.params}, (text, size)


def test_the_outputs_of_the_guide_are_real() -> None:
    """Each block of docs/guides/explain.md is what its command prints; a line "…" stands for lines left out."""
    guide = (ROOT / "docs" / "guides" / "explain.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```console\n\$ dptrace explain (.*?)\n(.*?)```", guide, re.DOTALL)

    assert 2 == len(blocks)
    for arguments, shown in blocks:
        printed = run(*arguments.split(), "-q").stdout
        for part in shown.split("…\n"):
            assert part.strip("\n") in printed
