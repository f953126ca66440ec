"""What to record, from a command line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from dptrace.errors import UsageError
from dptrace.record.options.command_line import Program, check_program, merge_settings, parse_program
from tests.support.launchers import fake_accelerate

pytest.importorskip("torch")  # whose launcher's parser is used


@pytest.fixture(autouse=True)
def _accelerate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a stand-in of accelerate in the place of whichever is installed."""
    monkeypatch.syspath_prepend(str(fake_accelerate(tmp_path)))
    for name in [name for name in sys.modules if name.partition(".")[0] == "accelerate"]:
        monkeypatch.delitem(sys.modules, name)


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
        ("python -m accelerate.commands.accelerate_cli launch train.py", "train.py", False, ()),
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
        ("python -i train.py", "-i"),
        ("-m", "-m needs a value"),
        ("python2 train.py", "is not the Python that runs dptrace"),
        ("/usr/nowhere/python train.py", "is not the Python that runs dptrace"),
        ("uv run train.py", "Put uv before dptrace"),
        ("torchrun --no-python ./train", "--no-python"),
        ("torchrun --rdzv-backend etcd train.py", "--rdzv-backend etcd"),
        ("torchrun --nnodes 1:2 train.py", "--nnodes 1:2"),
        ("torchrun --max-restarts few train.py", "--max-restarts"),
        ("torchrun --no-such-option train.py", "--no-such-option"),
        ("torchrun --nproc-per-node 2", "script"),
        ("torchrun --nproc-per-node 0 train.py", "1 or more"),
        ("torchrun --nproc-per-node many train.py", "many"),
        ("accelerate launch --no_python train", "--no-python"),
        ("accelerate launch --no_such_option train.py", "--no_such_option"),
        ("srun -n 4 python -u train.py --x 1", "srun -n 4 python -u -m dptrace.record train.py --x 1 "),
        ("mpirun -np 2 ./train.py", "mpirun -np 2 python -m dptrace.record ./train.py "),
        ("deepspeed --num_gpus 2 train.py", "deepspeed --num_gpus 2 --module dptrace.record train.py "),
        ("srun run.sh", "srun run.sh python -m dptrace.record train.py "),
    ],
)
def test_what_would_have_to_be_ignored_is_refused(words: str, says: str) -> None:
    """With what to do instead; for other launchers, with the line that lets each rank record itself."""
    with pytest.raises(UsageError) as refused:
        parse_program(words.split())

    assert says in str(refused.value)


def test_options_of_python_reach_the_ranks() -> None:
    """As they are, whether alone or several in one word; torchrun's own Python does not pass them on."""
    options = ["-uBOO", "-W", "ignore", "-Werror", "-X", "dev"]

    assert ("-uBOO", "-W", "ignore", "-W", "error", "-X", "dev", "-s") == parse_program(
        ["python", *options, "-sm", "pkg.train"]
    ).python_options
    assert () == parse_program(["python", *options, "-m", "torch.distributed.run", "train.py"]).python_options


@pytest.mark.parametrize(
    ("words", "processes", "settings"),
    [
        ("train.py", 1, {"nnodes": 1, "max_restarts": 0}),
        ("--nproc-per-node 3 --max-restarts 2 train.py", 3, {"nnodes": 1, "max_restarts": 2}),
        (
            "--nnodes 2 --node_rank 1 --rdzv-endpoint h:1 --rdzv-backend c10d train.py",
            1,
            {"nnodes": 2, "node_rank": 1, "rdzv_endpoint": "h:1", "max_restarts": 0},
        ),
        (
            "--nnodes 2:2 --node-rank 0 --master-addr h --master-port 7 train.py",
            1,
            {"nnodes": 2, "node_rank": 0, "rdzv_endpoint": "h:7", "max_restarts": 0},
        ),
        (
            "--nnodes 2 train.py",
            1,
            {"nnodes": 2, "node_rank": None, "rdzv_endpoint": None, "max_restarts": 0},
        ),
    ],
)
def test_options_of_torchrun_become_those_of_dptrace(words: str, processes: int, settings: dict[str, Any]) -> None:
    """torchrun gets all of them as well, up to the script."""
    found = parse_program(["torchrun", *words.split()])

    assert (processes, settings) == (found.processes, found.settings)
    assert tuple(words.split()[:-1]) == found.torchrun


def test_defaults_come_from_torchruns_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun reads PET_NPROC_PER_NODE; an option takes precedence."""
    monkeypatch.setenv("PET_NPROC_PER_NODE", "3")

    assert 3 == parse_program(["torchrun", "train.py"]).processes
    assert 2 == parse_program(["torchrun", "--nproc-per-node", "2", "train.py"]).processes


def test_accelerate_starts_the_ranks_itself() -> None:
    """With all its options, so that they mean what they mean without dptrace."""
    words = ["accelerate", "launch", "--num_processes", "2", "--config_file", "a.yaml", "train.py"]

    assert tuple(words[:-1]) == parse_program(words).launcher


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


def test_a_setting_given_twice_must_be_the_same() -> None:
    """The script's command line sets what dptrace's options leave open."""
    defaults = {"nnodes": 1, "max_restarts": 0}

    assert {"nnodes": 2, "max_restarts": 3} == merge_settings(
        {"nnodes": 2, "max_restarts": 0}, {"nnodes": 2, "max_restarts": 3}, defaults
    )
    assert {"nnodes": 2, "node_rank": 1} == merge_settings(
        {"nnodes": 1, "node_rank": None}, {"nnodes": 2, "node_rank": 1}, defaults
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
