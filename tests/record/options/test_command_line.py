"""What to record, from a command line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dptrace.errors import UsageError
from dptrace.record.options.command_line import Program, check_program, parse_program


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
        ("python -c print()", "write the code to a file"),
        ("python -i train.py", "-i"),
        ("-m", "-m needs a value"),
        ("python2 train.py", "is not the Python that runs dptrace"),
        ("/usr/nowhere/python train.py", "is not the Python that runs dptrace"),
        ("uv run train.py", "Put uv before dptrace"),
        ("torchrun --nproc-per-node 2", "Put -m dptrace.record before"),
        ("accelerate launch --no_python train", "Put -m dptrace.record before"),
        ("deepspeed --num_gpus 2 -m", "Put --module dptrace.record before"),
        ("srun run.sh", "Put python -m dptrace.record before"),
    ],
)
def test_what_would_have_to_be_ignored_is_refused(words: str, says: str) -> None:
    """With what to do instead."""
    with pytest.raises(UsageError) as refused:
        parse_program(words.split())

    assert says in str(refused.value)


def test_options_of_python_reach_the_ranks() -> None:
    """As they are, whether alone or several in one word."""
    options = ["-uBOO", "-W", "ignore", "-Werror", "-X", "dev", "-sm", "pkg.train"]

    assert ("-uBOO", "-W", "ignore", "-W", "error", "-X", "dev", "-s") == parse_program(
        ["python", *options]
    ).python_options


_TORCHRUN = f"{sys.executable} -m torch.distributed.run"


@pytest.mark.parametrize(
    ("words", "launcher", "program"),
    [
        ("torchrun --nproc-per-node 2 train.py -m 4", f"{_TORCHRUN} --nproc-per-node 2 -m", "train.py -m 4"),
        ("/opt/bin/torchrun --standalone -m pkg.train a", f"{_TORCHRUN} --standalone -m", "-m pkg.train a"),
        ("python -um torch.distributed.run -m pkg.train", f"{_TORCHRUN} -m", "-m pkg.train"),
        ("torchrun --no-python python -u train.py", f"{_TORCHRUN} --no-python python -u -m", "train.py"),
        ("accelerate launch --num_processes 2 train.py", "accelerate launch --num_processes 2 -m", "train.py"),
        ("accelerate-launch --module pkg.train", "accelerate-launch -m", "-m pkg.train"),
        ("srun -n 4 -m cyclic python -u train.py --x", "srun -n 4 -m cyclic python -u -m", "train.py --x"),
        ("srun python -m pkg.train", "srun python -m", "-m pkg.train"),
        ("mpirun -np 2 ./train.py", "mpirun -np 2 python -m", "./train.py"),
        ("deepspeed --num_gpus 2 train.py", "deepspeed --num_gpus 2 --module", "train.py"),
    ],
)
def test_the_ranks_of_a_launcher_record_themselves(words: str, launcher: str, program: str) -> None:
    """dptrace.record takes the place of the script, however the launcher starts modules."""
    found = parse_program(words.split())

    assert ([*launcher.split(), "dptrace.record"], program.split()) == ([*found.launcher], [*found.words])


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
