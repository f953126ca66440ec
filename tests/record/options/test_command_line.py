"""What to record, from a command line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dptrace.errors import UsageError
from dptrace.record.options.command_line import (
    Program,
    check_program,
    merge_settings,
    parse_program,
    process_count,
)


@pytest.mark.parametrize(
    ("words", "target", "is_module", "arguments"),
    [
        ("train.py -m --epochs 3", "train.py", False, ("-m", "--epochs", "3")),
        ("-m pkg.train --epochs 3", "pkg.train", True, ("--epochs", "3")),
        ("-mpkg.train -m", "pkg.train", True, ("-m",)),
        ("python train.py -u", "train.py", False, ("-u",)),
        ("python3 -u -m pkg.train x", "pkg.train", True, ("x",)),
        ("python -um pkg", "pkg", True, ()),
        (f"{sys.executable} train.py", "train.py", False, ()),
        ("torchrun --nproc-per-node 4 train.py --nproc-per-node 2", "train.py", False, ("--nproc-per-node", "2")),
        ("/opt/bin/torchrun --standalone --nproc_per_node=4 -m pkg.train a", "pkg.train", True, ("a",)),
        ("python -m torch.distributed.run --nproc-per-node=4 train.py a", "train.py", False, ("a",)),
        ("python -m torch.distributed.launch --use-env train.py a", "train.py", False, ("a",)),
        ("python -m torch.distributed.launch train.py a", "train.py", False, ("--local-rank=${local_rank}", "a")),
        ("accelerate launch --num_processes 2 train.py --cpu", "train.py", False, ("--cpu",)),
        ("accelerate-launch -m pkg.train", "pkg.train", True, ()),
        ("python -m accelerate.commands.launch train.py", "train.py", False, ()),
    ],
)
def test_a_command_line_names_the_program(words: str, target: str, is_module: bool, arguments: tuple[str, ...]) -> None:
    """What starts it is dropped, what follows it is its own."""
    program = parse_program(words.split())

    assert (target, is_module, arguments) == (program.target, program.is_module, program.arguments)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("python", "Name the script after python"),
        ("python -", "reads none from its input"),
        ("python -c print()", "write the code to a file"),
        ("python -i train.py", "leave -i out"),
        ("python -X tracemalloc train.py", "-X dev"),
        ("-m", "-m needs a value"),
        ("python2 train.py", "is not the Python that runs dptrace"),
        ("/usr/nowhere/python train.py", "is not the Python that runs dptrace"),
        ("deepspeed train.py", "dptrace record --gpus N train.py"),
        ("srun train.py", "Put srun before dptrace"),
        ("uv run train.py", "Put uv before dptrace"),
    ],
)
def test_what_would_have_to_be_ignored_is_refused(words: str, says: str) -> None:
    """With what to do instead."""
    with pytest.raises(UsageError) as refused:
        parse_program(words.split())

    assert says in str(refused.value)


def test_options_of_python_become_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks read them as Python does."""
    monkeypatch.setenv("PYTHONWARNINGS", "default")
    words = ["python", "-uBOO", "-W", "ignore", "-Werror", "-X", "dev", "-m", "torch.distributed.run", "train.py"]
    expected = {
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONOPTIMIZE": "2",
        "PYTHONWARNINGS": "default,ignore,error",
        "PYTHONDEVMODE": "1",
    }

    assert expected == parse_program(words).environment


@pytest.mark.parametrize(
    ("program", "name"),
    [
        (Program("a/my train.py"), "my train"),
        (Program("pkg.train", True), "train"),
        (Program("pkg", True), "pkg"),
        (Program("pkg.__main__", True), "pkg"),
    ],
)
def test_a_run_is_named_after_its_program(program: Program, name: str) -> None:
    """The script without its ending, or the last part of the module."""
    assert name == program.name


@pytest.mark.parametrize(
    ("text", "gpus", "count"), [("3", 8, 3), ("gpu", 4, 4), ("auto", 4, 4), ("auto", 0, None), ("cpu", 4, None)]
)
def test_words_for_a_number_of_processes_are_resolved(
    text: str, gpus: int, count: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As torchrun resolves them: all GPUs, or all cores."""
    monkeypatch.setattr("os.cpu_count", lambda: 6)

    assert (count or 6) == process_count(text, gpus)


@pytest.mark.parametrize(
    ("text", "says"), [("gpu", "has no GPU"), ("0", "1 or more"), ("many", "give a number, gpu, cpu or auto")]
)
def test_a_number_of_processes_that_makes_no_sense_is_refused(text: str, says: str) -> None:
    """Before anything starts."""
    with pytest.raises(UsageError, match=says):
        process_count(text, 0)


def test_a_setting_given_twice_must_be_the_same() -> None:
    """The script's command line sets what dptrace's options leave open."""
    defaults = {"nnodes": 1, "max_restarts": 0}

    assert {"nnodes": 2, "max_restarts": 3} == merge_settings(
        {"nnodes": 2, "max_restarts": 0}, {"nnodes": 2, "max_restarts": 3}, defaults
    )
    with pytest.raises(UsageError, match="--max-restarts 1 before the program and --max-restarts 3 in it"):
        merge_settings({"nnodes": 1, "max_restarts": 1}, {"max_restarts": 3}, defaults)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a package with a module, in the working directory; importing either fails."""
    folder = tmp_path / "some_package"
    folder.mkdir()
    for name in ("__init__", "train"):
        (folder / f"{name}.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    return folder


def test_programs_that_are_there_are_accepted(package: Path) -> None:
    """Files, folders and packages with a __main__, modules, also in folders without __init__.py; none is imported."""
    check_program(Program("some_package/train.py"))
    check_program(Program("some_package.train", True))
    check_program(Program("json.tool", True))
    (package / "__main__.py").write_text("")
    check_program(Program("some_package", True))
    check_program(Program("some_package"))
    (package.parent / "plain_folder" / "inner").mkdir(parents=True)
    (package.parent / "plain_folder" / "inner" / "train.py").write_text("")
    check_program(Program("plain_folder.inner.train", True))


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (Program("nothere.py"), "nothere.py: script not found."),
        (Program("some_package"), "folder without a __main__.py"),
        (Program("sh"), "sh is a command"),
        (Program("some_package", True), "package without a __main__"),
        (Program("some_package.nothere", True), "no module some_package.nothere"),
        (Program("some_package.train.py", True), "no module some_package.train.py"),
        (Program("no_such_package.train", True), "no module no_such_package here"),
    ],
)
def test_programs_that_are_not_there_are_refused(program: Program, says: str, package: Path) -> None:
    """The message names what is missing."""
    with pytest.raises(UsageError) as refused:
        check_program(program)

    assert says in str(refused.value)
