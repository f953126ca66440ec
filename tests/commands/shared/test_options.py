"""Options that the verbs share."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from dptrace.commands.shared.main import COMMANDS, LazyGroup, cli
from tests.support.kineto_files import KinetoFile, training_step

READING = ("analyze", "kernels", "view", "report", "diff", "whatif", "export", "advise", "predict")
SERVING = ("mcp", "schema", "completion")
"""Verbs that print for a program, in a form of its own."""
SHARED = {
    "--ranks": READING,
    "--steps": READING,
    "--comm-pattern": (*READING, "critical-path"),
    "--phase-labels": (*READING, "critical-path"),
    "--no-cache": (*READING, "critical-path"),
    "--jobs": (*READING, "critical-path"),
    "--verbose": (*READING, "critical-path"),
    "--strict": (*READING, "critical-path", "hta"),
    "--json": tuple(verb for verb in COMMANDS if verb not in ("record", "view", "report", "export", "cp", *SERVING)),
    "--output": tuple(verb for verb in COMMANDS if verb not in ("cp", *SERVING)),
    "--quiet": tuple(verb for verb in COMMANDS if verb not in SERVING),
    "--force": tuple(verb for verb in COMMANDS if verb not in SERVING),
}


def options_of(verb: str) -> dict[str, click.Option]:
    assert isinstance(cli, LazyGroup)
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    return {name: option for option in command.params if isinstance(option, click.Option) for name in option.opts}


def test_an_option_is_spelled_alike_on_every_verb() -> None:
    """The verbs that have it declare it once: same type, same short name, same help."""
    for name in SHARED:
        found = [options_of(verb)[name] for verb in SHARED[name]]

        assert 1 == len({tuple(sorted(option.opts)) for option in found}), name
        if name not in ("--output", "--force", "--quiet", "--steps"):
            assert 1 == len({option.help for option in found}), name


@pytest.mark.heavy
def test_quiet_keeps_notes_and_the_answer(tmp_path: Path) -> None:
    """-q hides hints, never the notes on the data; -v prints each file."""
    path = training_step(KinetoFile(rank=0, world_size=2), 1, 0).write(tmp_path / "r0.json")
    normal, quiet, verbose = (CliRunner().invoke(cli, ["analyze", str(path), *flag]) for flag in ([], ["-q"], ["-v"]))

    assert quiet.stdout == normal.stdout
    assert ("", "Next:" in normal.stderr) == (quiet.stderr, True)
    assert "Read r0.json (1 of 1)" in verbose.stderr
    assert "rank 1" in CliRunner().invoke(cli, ["analyze", str(path), "-q", "--csv"]).stderr


def test_wrong_use_is_reported_before_any_work(tmp_path: Path) -> None:
    """A folder's name, a name that is too long, a pattern that is too large: exit code 2 and a sentence."""
    path = training_step(KinetoFile(), 1, 0).write(tmp_path / "r0.json")
    for option in (["-o", "nofolder/"], ["-o", "a" * 300], ["--comm-pattern", "a{99999999999}"]):
        result = CliRunner().invoke(cli, ["analyze", str(path), *option])

        assert (2, True) == (result.exit_code, result.exception is None or isinstance(result.exception, SystemExit))


@pytest.mark.heavy
def test_a_selection_has_the_figures_of_the_whole(tmp_path: Path) -> None:
    """--ranks and --steps leave rows out of analyze --json and change none."""
    for rank in (0, 1, 2):
        file = KinetoFile(rank=rank, world_size=3)
        for step in range(4):
            training_step(file, step, 100 * step)
        file.write(tmp_path / f"r{rank}.json.gz")

    def ranks(*options: str) -> list[dict[str, object]]:
        result = CliRunner().invoke(cli, ["analyze", str(tmp_path), "--json", "-q", *options])
        assert 0 == result.exit_code, result.output
        return list(json.loads(result.stdout)["ranks"])

    whole, part = ranks(), ranks("--ranks", "0,2", "--steps", "1:2")

    assert [0, 2] == [rank["rank"] for rank in part]
    assert [rank["steps"][1:3] for rank in whole if rank["rank"] != 1] == [rank["steps"] for rank in part]  # type: ignore[index]
    assert [whole[1]] == ranks("--ranks", "1")


def test_csv_alone_prints_it_on_every_verb() -> None:
    """--csv needs no value; on diff and bench it may have one."""
    verbs = ("analyze", "kernels", "diff", "whatif", "critical-path", "hta", "bench")

    for option in (options_of(verb)["--csv"] for verb in verbs):
        assert option.is_flag or option._flag_needs_value


# What a user says of a step's work, on the command line.


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One rank of two steps."""
    training_step(training_step(KinetoFile(rank=0, world_size=1), 4, 0), 5, 100).write(tmp_path / "r0.json.gz")
    return tmp_path


def run(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "200"}).invoke(cli, ["analyze", *map(str, arguments)])


@pytest.mark.heavy
def test_parameters_tokens_and_peak_give_the_utilization(folder: Path) -> None:
    """6 · 2,000 · 1,000 FLOPs in each step; in JSON by step, in the terminal as a sentence."""
    options = ("--params", "2K", "--tokens", "1e3", "--samples", "4", "--peak-tflops", "0.5")

    found = json.loads(run(folder, *options, "--json").stdout)["utilization"]

    wall = [step["wall_ns"] for step in found["steps"]]
    assert pytest.approx([12e6 / ns / 1e3 for ns in wall]) == [step["tflops"] for step in found["steps"]]
    assert pytest.approx(12e6 * 2 / sum(wall) / 1e3 / 0.5) == found["mfu"]
    assert pytest.approx(4 * 2e9 / sum(wall)) == found["samples_per_s"]
    assert "MFU" in run(folder, *options).stdout
