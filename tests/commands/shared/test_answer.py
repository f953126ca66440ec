"""The answer of a verb in a file, whose name decides its form."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from io import StringIO
from pathlib import Path

import click
import pandas as pd
import pytest
from click.testing import CliRunner, Result

from dptrace.commands.shared.answer import CSV, HTML, TEXT, Destination, Form, file_options
from dptrace.commands.shared.main import cli
from dptrace.commands.shared.options import quiet_option
from dptrace.errors import UsageError
from dptrace.model.link_report import link_report
from tests.support.kineto_files import KinetoFile, training_step
from tests.support.links_samples import measured
from tests.support.pictures import png_test

LOOKS: dict[str, Callable[[str], bool]] = {
    "json": lambda text: "schema" in json.loads(text),
    "csv": lambda text: len(pd.read_csv(StringIO(text)).columns) > 2,
    "html": lambda text: text.startswith("<!DOCTYPE html>"),
    "svg": lambda text: text.startswith("<svg "),
    "xml": lambda text: "<testcase" in text,
    "txt": lambda text: not re.match("[`{<]", text),
    "md": lambda text: text.startswith(("# ", "```text\n")) and text.endswith("\n```\n") != text.startswith("# "),
}
"""What a file of each form is."""
VERBS = {
    "analyze RUN": "csv",
    "analyze RUN --memory": "csv",
    "kernels RUN": "csv",
    "kernels RUN --by host": "csv",
    "diff RUN OTHER": "csv html",
    "diff RUN OTHER --fail-if wall>+90%": "csv html xml",
    "critical-path RUN": "csv html",
    "whatif RUN": "csv html",
    "whatif RUN --world-size 2,4": "html svg",
    "predict --params 1e9": "html svg",
    "advise --params 1e9": "html svg",
    "predict --memory --params 1e9": "",
    "explain ring": "html",
    "doctor": "",
    "cache": "",
}
"""Each verb, and its forms besides text, Markdown and JSON."""
PICTURES_AND_TRACES = {"png", "pftrace"}
"""Suffixes whose files other tests look at."""
NEVER = ("pdf", "xlsx", "htmlx", "gz")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two runs of two ranks."""
    made = tmp_path_factory.mktemp("runs")
    for name, length in (("RUN", 100), ("OTHER", 120)):
        (made / name).mkdir()
        for rank in (0, 1):
            file = KinetoFile(rank, 2)
            for step in range(3):
                training_step(file, step, step * length)
            file.write(made / name / f"rank{rank}.json")
    return made


@pytest.fixture(autouse=True)
def _in_the_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def asked(line: str, *arguments: str) -> Result:
    return CliRunner().invoke(cli, [*line.split(), *arguments])


@pytest.mark.slow
def test_the_name_of_a_file_decides_its_form(folder: Path) -> None:
    """In any case of letters, for every verb; JSON and CSV are those of --json and --csv."""
    for line in [line for line in VERBS if line != "doctor"]:
        for form in ("txt", "md", "json", *VERBS[line].split()):
            path = folder / f"answer.{form.upper()}"
            done = asked(line, "-o", path.name, "--force")
            assert (0, "") == (done.exit_code, done.stdout), (form, done.output)
            assert f"Wrote {path.name}" in done.stderr, line
            text = path.read_text(encoding="utf-8")
            assert LOOKS[form](text), (form, text[:100])
            if form in ("json", "csv"):
                assert asked(line, f"--{form}").stdout == text, line
            path.unlink()


@pytest.mark.heavy
def test_a_form_that_a_verb_does_not_have_is_refused(folder: Path) -> None:
    """Before any work: the message names the suffixes that it has, and nothing is written."""
    for line in VERBS:
        has = ("txt", "md", "json", *VERBS[line].split())
        for form in sorted(
            {*LOOKS, *NEVER} - set(has) - ({"whatif RUN": {"svg"}, "diff RUN OTHER": {"xml"}}.get(line) or set())
        ):
            path = folder / f"answer.{form.upper()}"
            done = asked(line, "-o", path.name)
            assert (2, "", False) == (done.exit_code, done.stdout, path.exists()), (form, done.output)
            if "2,4" not in line:
                assert all(f".{name}" in done.stderr for name in has), done.stderr


def test_every_form_of_a_verb_is_tried() -> None:
    """Whoever adds one to its ``answer_options`` adds its suffix to VERBS, and to LOOKS."""
    for verb in sorted({line.split()[0] for line in VERBS}):
        command = cli.get_command(click.Context(cli), verb)
        assert command is not None, verb
        (output,) = [param for param in command.params if isinstance(param, click.Option) and param.name == "outputs"]
        named = {*re.findall(r"\.(\w+)", (output.help or "").partition(";")[0])}
        tried = {form for line in VERBS if line.split()[0] == verb for form in VERBS[line].split()}

        assert set() == named - tried - {"txt", "md", "json"} - PICTURES_AND_TRACES, verb


def test_a_table_is_written_in_any_form_of_tables() -> None:
    """The table that --csv names, also to a file of another such form; the advice names them all."""
    tsv = Form("TSV", (".tsv",), of_table=True)

    @click.command()
    @quiet_option
    @file_options(TEXT, CSV, HTML, tsv, flags=(click.option("--csv", "as_csv"),))
    def verb(to: Destination, verbosity: str) -> None:
        click.echo(f"{to.table} {to.only(tsv)}")

    done = CliRunner().invoke(verb, ["--csv", "kernels", "-o", "x.tsv"])

    assert (0, "kernels True\n") == (done.exit_code, done.output)
    with pytest.raises(UsageError, match=r"\.csv or \.tsv"):
        CliRunner().invoke(verb, ["--csv", "kernels", "-o", "x.html"], catch_exceptions=False)


@pytest.mark.heavy
def test_several_files_hold_an_answer_each(folder: Path) -> None:
    """Nothing is printed but for -, of which a flag says the form; one that can't be written prevents all."""
    names = [f"all.{form}" for form in LOOKS if form != "svg"]
    options = [word for name in names for word in ("-o", name)]
    line = "diff RUN OTHER --fail-if wall>+90%"
    refused = asked(line, *options, "-o", "none/x.csv")
    assert (2, []) == (refused.exit_code, [*folder.glob("all.*")])
    done = asked(line, *options, "-o", "-", "--json")
    assert (0, (folder / "all.json").read_text()) == (done.exit_code, done.stdout), done.output
    assert "" == asked(line, *options, "--force").stdout
    for name in names:
        assert LOOKS[name[4:]]((folder / name).read_text(encoding="utf-8")), name
        (folder / name).unlink()


@pytest.mark.slow
def test_options_of_earlier_versions_write_what_o_writes(folder: Path) -> None:
    """Besides the answer, as they did; a line names the new way, and help no longer the old."""
    for line, old, path, printed in (
        ("diff RUN OTHER", "--html", "x.html", True),
        ("diff RUN OTHER --fail-if wall>+90%", "--junit", "x.xml", True),
        ("whatif RUN", "--export", "x.pftrace", True),
        ("links --from links.json", "--html", "x.html", True),
    ):
        (folder / "links.json").write_text(json.dumps(link_report(measured(ranks=2))))
        now = asked(line, *("-o", "-") * printed, "-o", path)
        made = (folder / path).read_bytes()
        before = asked(line, old, path, "--force")

        assert (0, 0, now.stdout) == (now.exit_code, before.exit_code, before.stdout), before.output
        # Bokeh counts its objects in a process: the later numbers may be longer.
        lengths = {len(re.sub(rb"\bp\d+\b", b"p", content)) for content in (made, (folder / path).read_bytes())}
        assert len(lengths) == 1, line
        assert f"{old} FILE is now -o FILE" in before.stderr, line
        assert f"{old} " not in asked(line.split()[0], "--help").stdout, line
        assert "is now" not in asked(line, old, path, "--force", "-q").stderr, line
        (folder / path).unlink()


def test_a_fence_is_longer_than_any_in_a_name(folder: Path) -> None:
    """So a name in a trace can't end the block of code in which Markdown holds the tables."""
    (folder / "HOSTILE").mkdir()
    KinetoFile(0, 1).label("ProfilerStep#1", 0, 9).kernel("`````", 1, 8, 0).write(folder / "HOSTILE" / "rank0.json")
    assert 0 == asked("kernels HOSTILE", "-o", "fenced.md").exit_code

    first, *_, last = (folder / "fenced.md").read_text().splitlines()
    assert ("``````text", "``````") == (first, last)


@pytest.mark.heavy
@png_test
def test_a_picture_is_drawn_whatever_the_case_of_its_suffix(folder: Path) -> None:
    """As PNG."""
    for line in ("predict --params 1e9", "whatif RUN --world-size 2,4"):
        assert 0 == asked(line, "-o", "chart.PNG", "--force").exit_code, line
        assert b"\x89PNG" == (folder / "chart.PNG").read_bytes()[:4], line
