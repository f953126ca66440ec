"""No verb replaces a file that it reads, whatever names it and whatever is forced."""

from __future__ import annotations

import io
import os
import shutil
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

import dptrace
from dptrace.commands.shared.main import COMMANDS, cli
from dptrace.commands.shared.output import OutputFile
from dptrace.errors import UsageError
from tests.support.bench_tables import CSV
from tests.support.kineto_files import KinetoFile, training_step
from tests.support.links_samples import report_text

CASES = [
    "analyze runs/a --json -o runs/a/rank0.json",
    "analyze runs/a --csv -o hard.csv",
    "analyze runs/a/rank0.json --json -o runs/a/run.json",
    "analyze runs/*/rank0.json --ranks 1 --json -o runs/b/rank0.json",
    "analyze runs/a --ranks 0 --json -o runs/a/rank1.json",
    "analyze runs/a --hta-compat --json -o link.json",
    "analyze packed.zip --json -o packed.zip",
    "analyze packed.zip!a/rank0.json --json -o packed.zip",
    "kernels runs/a --json -o runs/a/rank0.json",
    "whatif runs/a --compute 2x --json -o runs/a/rank0.json",
    "whatif runs/a --compute 2x --export runs/a/rank1.json",
    "critical-path runs/a --json -o runs/a/rank0.json",
    "predict --memory runs/a --json -o runs/a/run.json",
    "advise runs/a --json -o runs/a/rank0.json",
    "advise --params 7e9 --links links.json --json -o links.json",
    "predict runs/a --json -o runs/a/rank0.json",
    "predict --params 7e9 --links links.json --json -o links.json",
    "view runs/a -o hard.html",
    "view runs/a -o hard.svg",
    "view runs/a --svg hard.svg",
    "view runs/a --png hard.png",
    "view runs/a --figure -o hard.svg",
    "view runs/b --against runs/a -o hard.html",
    "report runs/a -o ./runs/../hard.html",
    "export runs/a -o runs/a/rank0.json",
    "export runs/a -o folder/rank0.json",
    "export packed.zip -o packed.zip --format chrome",
    "diff runs/a runs/b --json -o runs/b/rank0.json",
    "diff runs/a runs/b --html hard.html",
    "diff runs/a runs/b --fail-if wall>+3% --junit hard.xml",
    "diff --before runs/a --after runs/b --json -o runs/b/run.json",
    "hta runs/a idle-breakdown --json -o runs/a/rank0.json",
    "links --from links.json --html hard_links.html",
    "baseline save a runs/a --folder kept --json -o runs/a/rank0.json",
    "history runs --json -o runs/a/rank0.json",
    "bench --from table.csv -o made --csv table.csv",
    "bench --from made/table.csv -o made",
    "flight flight/rank_0.json --json -o flight/rank_0.json",
    "cp naive own.py",
    "log runs/a --to tensorboard --folder made/log -o runs/a/rank0.json",
    "diff runs/a runs/b --fail-if wall>+3% -o new.html -o hard.xml",
]


def run(*arguments: str, **options: object) -> Result:
    return CliRunner().invoke(cli, list(arguments), **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with runs, an archive of one, links to its files, and results of other verbs."""
    tree = tmp_path_factory.mktemp("tree")
    for name in ("a", "b"):
        (tree / "runs" / name).mkdir(parents=True)
        for rank in range(2):
            training_step(KinetoFile(rank, 2), 1, 0).write(tree / "runs" / name / f"rank{rank}.json")
        (tree / "runs" / name / "run.json").write_text("{}")
    shutil.make_archive(str(tree / "packed"), "zip", tree / "runs", "a")
    for link in ("hard.csv", "hard.html", "hard.svg", "hard.png", "hard.xml"):
        os.link(tree / "runs" / "a" / "rank0.json", tree / link)
    (tree / "link.json").symlink_to("runs/a/rank1.json")
    (tree / "folder").symlink_to("runs/a")
    (tree / "own.py").write_text("import dptrace")
    (tree / "flight").mkdir()
    (tree / "flight" / "rank_0.json").write_text('{"entries": []}')
    (tree / "made").mkdir()
    for table in ("table.csv", "made/table.csv"):
        (tree / table).write_text(CSV)
    (tree / "made" / "bench.json").write_text('{"schema": 1}')
    for links in ("links.json", "made/links.json"):
        (tree / links).write_text(report_text(2))
    os.link(tree / "links.json", tree / "hard_links.html")
    return tree


@pytest.fixture
def here(tree: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the folder, which no test changes, the current one."""
    monkeypatch.chdir(tree)
    return tree


@pytest.fixture
def copy(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a copy of the runs, which a test may change, the current folder."""
    shutil.copytree(tree / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.heavy
def test_an_input_is_refused_as_the_output(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 2, the file's name, and every file as it was; --force changes nothing."""
    monkeypatch.setattr("dptrace.commands.cp.trainer", lambda mode: here / "own.py")
    before = contents(here)
    for line in CASES:
        done = run(*line.split(), "--force")

        assert (2, before) == (done.exit_code, contents(here)), (line, done.output)
        assert "even with --force" in done.output, line


@pytest.mark.heavy
def test_the_links_of_a_sweep_are_kept(here: Path) -> None:
    """A folder that is written again may not hold the file that predicts its bucket sizes."""
    before = contents(here)
    done = run("sweep", "--bucket-cap-mb", "1,2", "--gpus", "2", "--links", "made/links.json", "-o", "made", "--force")

    assert (2, before) == (done.exit_code, contents(here)), done.output
    assert "made/links.json" in done.output


@pytest.mark.heavy
def test_an_export_in_the_runs_folder_is_written_again(copy: Path) -> None:
    """Only what is read is refused: an export beside the traces is not."""
    for _ in range(2):
        done = run("export", "runs/a", "-o", "runs/a/all.pftrace", "--force", "-q")
        assert 0 == done.exit_code, done.output


def test_the_file_behind_standard_input_is_kept(here: Path) -> None:
    """``dptrace analyze - -o rank0.json < rank0.json`` is refused."""
    trace = here / "runs" / "a" / "rank0.json"
    before, saved = trace.read_bytes(), os.dup(0)
    try:
        with trace.open("rb") as file:
            os.dup2(file.fileno(), 0)
        done = run("analyze", "-", "--json", "-o", str(trace), "--force", input=io.BytesIO(before))
    finally:
        os.dup2(saved, 0)
        os.close(saved)

    assert (2, before) == (done.exit_code, trace.read_bytes()), done.output


def test_python_does_not_replace_what_a_run_was_read_from(copy: Path) -> None:
    """``export_trace`` refuses it with force, and writes over the files of other runs."""
    first, other = dptrace.open("runs/a"), dptrace.open("runs/b")
    before = contents(copy)

    with pytest.raises(UsageError, match="even with force"):
        dptrace.export_trace(first, "runs/a/rank0.json", force=True)

    assert before == contents(copy)
    dptrace.export_trace(other, "runs/a/rank0.json", force=True)


def test_each_verb_that_writes_a_file_besides_others_is_a_case() -> None:
    """A new verb, or a new option that names a file to write, needs its case above."""
    covered = {(line.split()[0], word) for line in CASES for word in line.split()}
    reads_nothing = {("doctor", "-o"), ("links", "-o"), ("explain", "-o"), ("cache", "-o")}
    missing = [
        (verb, param.opts[0])
        for verb in COMMANDS
        for param in cli.get_command(click.Context(cli), verb).params  # type: ignore[union-attr]
        if isinstance(param.type, OutputFile) and (verb, param.opts[0]) not in covered | reads_nothing
    ]

    assert not missing
