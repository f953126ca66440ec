"""``dptrace diff`` as a user runs it."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dptrace.analysis.per_gpu.causes import CAUSES
from dptrace.analysis.per_gpu.split import FIGURES
from dptrace.commands.shared.main import cli
from tests.support.real_traces import needs_real_traces, real

TRACES = Path(__file__).resolve().parents[2] / "traces"
NAIVE, INTERLEAVED = str(TRACES / "naive_cpu_2ranks"), str(TRACES / "interleaved_cpu_2ranks")

ROWS = len(FIGURES) + len(CAUSES)


def run(*arguments: object, columns: int = 80) -> Result:
    return CliRunner(env={"COLUMNS": str(columns)}).invoke(cli, ["diff", *map(str, arguments)])


@pytest.mark.heavy
def test_tables_fit_eighty_columns_and_say_what_moved() -> None:
    """What differs, a sentence, the tables, and the next command."""
    result = run(NAIVE, INTERLEAVED)

    assert 0 == result.exit_code, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    assert "≠ Mode: A naive, B interleaved." in result.stdout
    assert "overlapped communication +29.8 ms" in " ".join(result.stdout.split())
    assert "ReluBackward0" in result.stdout
    assert "-o diff.html" in result.stderr
    assert "of each rank" in run(NAIVE, INTERLEAVED, "--per-rank").stdout
    assert "aten::ones_like" in run(NAIVE, INTERLEAVED, "--all").stdout


@pytest.mark.heavy
def test_json_is_the_schema_and_nothing_else_on_stdout() -> None:
    """stdout parses; notes and what differs go to stderr; limits are in it."""
    result = run(NAIVE, INTERLEAVED, "--json", "--fail-if", "wall > 1s")
    data = json.loads(result.stdout)

    assert 1 == data["schema"]
    assert [*FIGURES, *CAUSES] == [row["figure"] for row in data["figures"]]
    assert [{"limit": "wall > 1s", "crossed": False, "failed": False}] == [
        {key: row[key] for key in ("limit", "crossed", "failed")} for row in data["limits"]
    ]
    assert "Mode: A naive" in result.stderr
    assert "Mode: A naive, B interleaved." in data["differs"]


@pytest.mark.slow
def test_csv_has_a_row_for_each() -> None:
    """Figures, or figures by rank, collectives, kernels."""
    for what, first, rows in (
        ([], "figure", ROWS),
        (["figures"], "figure", ROWS),
        (["ranks"], "rank", 2 * ROWS),
        (["collectives"], "kind", 9),
        (["kernels"], "name", 17),
    ):
        table = list(csv.reader(io.StringIO(run(NAIVE, INTERLEAVED, "--csv", *what).stdout)))

        assert (first, rows + 1) == (table[0][0], len(table)), what


@pytest.mark.heavy
def test_a_page_is_written_where_asked(tmp_path: Path) -> None:
    """With the tables, of the requested steps, and not over an existing file."""
    page = tmp_path / "diff.html"
    result = run(NAIVE, INTERLEAVED, "-o", "-", "-o", page, "--html-steps", "12:13")
    text = page.read_text(encoding="utf-8").replace("\\u00b7", "·")

    assert 0 == result.exit_code, result.output
    assert f"Wrote {page} (" in result.stderr
    assert "exposed communication" in result.stdout
    assert "A · step 12" in text
    assert "B · step 13" in text
    assert 2 == run(NAIVE, INTERLEAVED, "-o", page).exit_code
    assert 1 == run(NAIVE, INTERLEAVED, "-o", page, "--force", "--html-steps", "99").exit_code
    assert [page] == list(tmp_path.iterdir())


@pytest.mark.slow
def test_limits_are_exit_code_3() -> None:
    """Changes that may be noise count only where that is asked for."""
    for line, code, facts in (
        # One limit that is exceeded is enough; each is printed, even with --quiet.
        (
            f"{NAIVE} {INTERLEAVED} -q --fail-if exposed_comm>+5% --fail-if overlap<90%",
            3,
            ("exposed_comm>+5%: not decided", "overlap<90%: crossed"),
        ),
        (f"{NAIVE} {INTERLEAVED} --fail-if exposed_comm>+5%", 0, ("not decided",)),
        (f"{NAIVE} {INTERLEAVED} --fail-if exposed_comm>+5% --fail-unchecked", 3, ("not decided",)),
        (f"{NAIVE} {INTERLEAVED} --fail-if overlapped_comm>+5%", 3, ("crossed",)),
        # Four steps cannot tell whether the wall's 9 % are noise.
        (f"{INTERLEAVED} {NAIVE} --fail-if wall>+5%", 0, ("not decided", "noise may make it")),
        (f"{INTERLEAVED} {NAIVE} --fail-if wall>+5% --fail-within-noise", 3, ()),
        (f"{NAIVE} {INTERLEAVED} --fail-if mfu<1%", 0, ("not checked",)),
        (f"{NAIVE} {INTERLEAVED} --fail-if mfu<1% --fail-unchecked", 3, ("not checked",)),
        (f"{NAIVE} {INTERLEAVED} --fail-unchecked", 2, ("add --fail-if",)),
        (f"{NAIVE} {NAIVE}", 0, ("No difference beyond noise: every figure is the same",)),
    ):
        result = run(*line.split(), columns=120)

        assert (code, [*facts]) == (result.exit_code, [fact for fact in facts if fact in result.output]), line


@pytest.mark.heavy
def test_ranks_and_steps_can_be_chosen() -> None:
    """Of both runs, or steps of each side; then one run may be on both."""
    both = json.loads(run(NAIVE, INTERLEAVED, "--json", "--ranks", "1", "--steps", "11:13").stdout)
    sides = ("--before-steps", "10:11", "--after-steps", "12:13")
    halves = json.loads(run(NAIVE, NAIVE, *sides, "--json").stdout)

    assert [1] == both["a"]["ranks"] == both["b"]["ranks"]
    assert 3 == len(both["a"]["steps"])
    assert "Cannot tell: 2 steps per run are too few" in halves["summary"]
    assert ["ProfilerStep#10", "ProfilerStep#11"] == halves["a"]["steps"]
    assert ["ProfilerStep#12", "ProfilerStep#13"] == halves["b"]["steps"]
    assert 0 == run("--before", NAIVE, "--after", NAIVE, *sides).exit_code


@pytest.mark.heavy
def test_several_recordings_are_the_samples() -> None:
    """Of both sides; the sentence, the lines above it and the JSON have all of them."""
    names = [str(TRACES / f"{name}_cpu_2ranks") for name in ("naive", "interleaved", "ddp", "ddp_4mb")]
    sides = ("--before", names[0], names[1], "--after", *names[2:])
    result, data = run(*sides, "--all"), json.loads(run(*sides, "--json").stdout)

    assert 0 == result.exit_code, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    letters = [line[:3] for line in result.stdout.splitlines()[:8] if line[1:2] in ("1", "2")]
    assert ["A1 ", "A2 ", "B1 ", "B2 "] == letters
    assert names == [side["run"] for key in ("before", "after") for side in data[key]]
    assert data["a"]["run"] in names[:2]
    assert not any(row["verdict"] == "beyond noise" for row in data["figures"] if row["p"] is not None)
    assert "--before" in result.stderr
    same = run("--before", names[0], "--before", names[1], "--after", names[2], "--after", names[3], "--json")
    assert data == json.loads(same.stdout)


@pytest.mark.slow
def test_headline_and_verdicts_agree_in_every_output(tmp_path: Path) -> None:
    """No time is saved where the step time's difference may be noise: not in the terminal, nor on either page."""
    page, against = tmp_path / "diff.html", tmp_path / "against.html"
    shown = run(NAIVE, INTERLEAVED, "-o", page, "-o", "-")
    view = CliRunner(env={"COLUMNS": "80"}).invoke(cli, ["view", NAIVE, "--against", INTERLEAVED, "-o", str(against)])
    text = CliRunner(env={"COLUMNS": "80"}).invoke(cli, ["view", NAIVE, "--against", INTERLEAVED, "--text"])

    assert (0, 0, 0) == (shown.exit_code, view.exit_code, text.exit_code)
    headline = json.loads(run(NAIVE, INTERLEAVED, "--json").stdout)["summary"]
    assert "saved" not in headline
    for path in (page, against):
        content = path.read_text(encoding="utf-8")
        assert headline.replace("'", "&#39;") in content
        assert "B saves" not in content
        assert '"certain":true' not in content.replace(" ", "")
    assert headline in " ".join(text.stdout.split())
    assert not any(word in text.stdout for word in (" saves ", " saved", "Saved by B"))


@pytest.mark.slow
@needs_real_traces
def test_a_kind_that_one_side_lacks_is_reported(tmp_path: Path) -> None:
    """Steps of two kinds against a step of one of them; and against too few steps of either."""
    path, copied = real("sharded_h100_8ranks"), tmp_path / "copied"
    shutil.copytree(path, copied)
    one_kind = run(path, copied, "--after-steps", "10:10", columns=200)
    too_few = run(path, path, "--before-steps", "11:13", "--after-steps", "10:10", columns=200)

    assert (0, 0) == (one_kind.exit_code, too_few.exit_code), one_kind.output
    assert "Cannot tell: steps of kind “10 all_gather, 10 reduce_scatter” are only in A" in one_kind.stdout
    assert "Cannot tell: too few steps of any kind" in too_few.stdout
