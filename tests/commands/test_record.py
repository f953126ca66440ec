"""``dptrace record``."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from dptrace.commands.record import (
    SCRIPT_OPTIONS,
    ModuleOption,
    RunReporter,
    _record,
    command,
    data_sentence,
)
from dptrace.errors import DptraceError, MissingExtraError, UsageError
from dptrace.record.launch.torchrun import Launch
from dptrace.record.options.catalog import OPTIONS, parse_options
from dptrace.record.options.modes import MODES
from dptrace.record.processes import Interrupted, Signals
from tests.support.forking import run_python
from tests.support.recordings import dptrace, environment, recorded

SCRIPT = """
import sys
import torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.Adam(model.parameters())
for _ in range(int(sys.argv[1])):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print("ended", __name__, sys.argv)
sys.exit(0)
"""


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def _refused(*arguments: str) -> DptraceError:
    error = CliRunner().invoke(command, arguments).exception
    assert isinstance(error, DptraceError), error
    return error


def test_what_makes_no_sense_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """Each with a sentence, and with the exit code for wrong use."""
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("")
    for arguments, says in (
        ("", "Choose either --mode or a script"),
        ("--mode naive train.py", "Choose either --mode or a script"),
        ("--mode nayve", "Unknown mode 'nayve'; choose from:\n  single "),
        ("--mode single --nnodes 2 --node-rank 0 --rdzv-endpoint h:1", "single trains on one GPU"),
        ("--mode naive --save-parameters nowhere/p.npz", "nowhere/p.npz: its folder does not exist"),
        ("--mode naive -o .", "the folder you are in"),
        ("--mode naive --warmup 1", "--warmup 1: at least 2. DDP"),
        ("--mode naive --steps 0", "--steps 0"),
        ("--mode naive --bucket-cap-mb 4", "does not apply to --mode naive; it is for ddp, accumulate."),
        ("--mode naive -q -v", "Choose one of"),
        ("--mode tp --gpus 3", "--model medium cannot be split over 3 ranks; try --gpus 1 or 2."),
        ("--mode 3d --gpus 2", "--mode 3d with --tp 2 and --pp 2 needs a multiple of 4 ranks, not 2."),
        ("--mode naive --nnodes 2", "--nnodes needs --node-rank"),
        ("--mode naive --nnodes 2 --node-rank 2 --rdzv-endpoint a:1", "--node-rank 2: must be from 0 to 1"),
        ("--mode naive --rdzv-endpoint a:1", "add --nnodes"),
        ("--mode naive --nnodes 2 --node-rank 1 --rdzv-endpoint foo", "--rdzv-endpoint foo: give HOST:PORT"),
        ("--mode ddp --compress int8 --checkpoint-every 2", "use --compress fp16 or bf16"),
        (
            "--mode naive --checkpoint-every 2 --checkpoints train.py/x",
            "--checkpoints train.py/x: no checkpoint can be",
        ),
        ("--mode naive -o full", "even --force does not replace it"),
        ("--model small train.py", "--model is for --mode"),
        ("nothere.py", "nothere.py: script not found."),
        ("-m nothere.train", "no module nothere here"),
        ("--gpus 2 torchrun train.py", "--gpus is for a script that dptrace starts itself"),
        ("torchrun nothere.py", "script not found"),
        ("-o full srun python train.py", "even --force does not replace it"),
        ("nowhere/mpirun -n 2 train.py", "nowhere/mpirun cannot be started"),
    ):
        error = _refused(*arguments.split())

        assert says in str(error), (arguments, says)
        assert isinstance(error, UsageError), (arguments, says)
        assert not (tmp_path / "runs").exists(), (arguments, says)


def test_what_this_machine_cannot_do_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """More GPUs than there are, and a batch that the ranks cannot share."""
    for arguments, gpus, says in (
        ("--mode naive --gpus 3", 2, "--gpus 3: this machine has only 2."),
        ("--mode naive --gpus 3", 0, "--batch-size 1024 must be divisible by 3 ranks; try 1023 or 1026."),
        ("--mode naive --batch-size 40000", 0, "--batch-size 40000: must be from 1 to 32768"),
    ):
        monkeypatch.setattr("dptrace.record.launch.launcher.local_gpu_count", lambda count=gpus: count)

        assert says == str(_refused(*arguments.split()))[: len(says)], arguments


def _job(**further: Any) -> Launch:
    return Launch(Path("r"), False, Path("ddp.py"), (), 2, "ddp", **further)


def test_after_ctrl_c_the_checkpoints_that_stay_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The recording is gone, what was learned is not."""
    monkeypatch.setattr("dptrace.record.launch.launcher.launch", _interrupted)
    (tmp_path / "kept").mkdir()
    for name, says in (("none", "and nothing is kept."), ("step-00000005", "stay, the last of step 5: --resume")):
        (tmp_path / "kept" / name).write_text("")
        with pytest.raises(SystemExit) as stopped:
            _record(_job(checkpoints=Path("kept")), quiet=True, signals=Signals())
        assert (130, True) == (stopped.value.code, says in capsys.readouterr().err)


def _interrupted(*_: object) -> None:
    raise Interrupted(2)


def test_what_resnet18_trained_on_is_reported() -> None:
    """Made-up images must not be taken for CIFAR-10; run.json says it in the same words."""
    told = parse_options("", "single", ["--model", "resnet18"]).record_arguments["options"]["data"]

    assert "made-up images of CIFAR-10's shape" == told
    assert f"It trained on {told}." == data_sentence({"mode": "ddp", "model": "resnet18", "options": {"data": told}})
    assert "CIFAR-10 from c10" in data_sentence({"mode": "ddp", "model": "resnet18", "options": {"data": "c10"}})
    assert "" == data_sentence({"mode": "ddp", "model": "small", "options": {"data": None}})


def test_without_torch_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The message is the pip line; importing the package asks for nothing yet."""
    monkeypatch.setitem(sys.modules, "torch", None)

    error = _refused("--mode", "naive")
    assert isinstance(error, MissingExtraError)
    assert str(error).endswith("pip install 'torch>=2.4'")
    code = "import sys; sys.modules['torch'] = None; import dptrace.record; dptrace.record.record"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.rstrip().endswith("pip install 'torch>=2.4'")


@pytest.mark.slow
@pytest.mark.spawn
def test_a_recorded_run_is_reported_and_not_overwritten() -> None:
    """What was written and what to type next; a second time only with --force."""
    folder = recorded("naive", 2).parent
    arguments = ["record", "--mode", "naive", "--gpus", "1", "--model", "small", "--batch-size", "64"]
    schedule = ["--steps", "1", "--warmup", "2", "--wait", "3", "-o", "again"]
    done = dptrace(*arguments, *schedule, cwd=folder)

    assert "No GPU found: recording 1 process" in done.stderr
    assert re.search(r"Wrote again: 1 step of 1 rank\..* without the profiler", done.stderr)
    assert done.stderr.endswith("Next: dptrace analyze again\n      dptrace view again\n")
    assert "" == done.stdout
    assert 2 == dptrace(*arguments, *schedule, cwd=folder, ok=False).returncode
    assert "" == dptrace(*arguments, *schedule, "--force", "-q", cwd=folder).stderr
    info = json.loads((folder / "again" / "run.json").read_text())
    assert ["dptrace", *arguments, *schedule, "--force", "-q"] == info["command"]


@pytest.mark.spawn
def test_a_script_is_recorded_without_a_change(tmp_path: Path) -> None:
    """Its own arguments are its own, its output is shown, and a process that joins no group is recorded too."""
    (tmp_path / "my train.py").write_text(SCRIPT)
    done = dptrace(
        "record", "--gpus", "2", "--steps", "2", "--warmup", "2", "my train.py", "12", "--steps", "9", cwd=tmp_path
    )

    assert "ended __main__ ['my train.py', '12', '--steps', '9']\n" == done.stdout
    info = json.loads((tmp_path / "runs" / "my train" / "run.json").read_text())
    assert (None, "my train.py", None, 20, 2) == tuple(
        info[key] for key in ("mode", "script", "backend", "parameters", "world_size")
    )
    assert [2, 2] == [rank["recorded_steps"] for rank in info["ranks"]]
    assert {"wait": 0, "warmup": 2, "steps": 2} == info["schedule"]


@pytest.mark.spawn
@pytest.mark.parametrize(
    ("script", "says"),
    [
        ("print('nothing')", "train.py made no step"),
        (SCRIPT.replace("int(sys.argv[1])", "3"), "the training made 3 steps, and recording begins after 3"),
    ],
)
def test_a_script_with_nothing_to_record_is_reported(tmp_path: Path, script: str, says: str) -> None:
    """The reason and what to do, no traceback, no folder, and the exit code of a training that went well."""
    (tmp_path / "train.py").write_text(script)
    done = dptrace("record", "-q", "--gpus", "1", "--steps", "2", "--warmup", "2", "train.py", cwd=tmp_path)

    assert 0 == done.returncode
    assert says in done.stderr
    assert "Traceback" not in done.stderr
    assert [] == list((tmp_path / "runs").iterdir())


@pytest.mark.spawn
@pytest.mark.parametrize(
    ("last", "options", "code", "says"),
    [
        pytest.param(
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            [],
            137,
            "ended by SIGKILL",
            marks=pytest.mark.slow,
        ),
        ("print('last words'); raise SystemExit(7)", [], 7, "exit code 7"),
        pytest.param("import time; time.sleep(600)", ["--timeout", "5"], 1, "time.sleep(600)", marks=pytest.mark.slow),
    ],
)
def test_one_process_that_fails_is_reported_as_a_rank(
    tmp_path: Path, last: str, options: list[str], code: int, says: str
) -> None:
    """Although no torchrun stands above it: why it ended or where it hangs, and its last lines."""
    (tmp_path / "train.py").write_text(SCRIPT.replace('print("ended"', last + '\nprint("ended"'))
    arguments = ["-q", "--gpus", "1", "--steps", "9", *options, "train.py", "6"]
    done = dptrace("record", *arguments, cwd=tmp_path, ok=False)

    assert (code, True) == (done.returncode, says in done.stderr), done.stderr
    # What a script prints goes to the terminal, with -q too.
    assert ("last words" in last) == ("last words" in done.stdout)


@pytest.mark.slow
@pytest.mark.spawn
def test_a_trainer_runs_by_itself(tmp_path: Path) -> None:
    """Started by torchrun, not by dptrace record, the ranks name and write their run together."""
    from dptrace.record.options.modes import trainer

    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    training = ["--model", "small", "--batch-size", "64", "--steps", "1", "--warmup", "2", "--wait", "0"]
    command = [*torchrun, str(trainer("interleaved")), *training]
    assert 0 == run_python(*command, cwd=tmp_path, env=environment()).returncode

    names = {path.name for path in (tmp_path / "runs" / "interleaved").iterdir()}
    assert {"run.json", "rank0.pt.trace.json.gz", "rank1.pt.trace.json.gz"} == names
    assert ["interleaved"] == [path.name for path in (tmp_path / "runs").iterdir()]


def test_tasks_of_srun_would_each_record_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are told the line that lets each be a rank; one task, Slurm's own steps and a shell are no such tasks."""
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.setattr("dptrace.commands.record._record", lambda *arguments: None)
    ranks = ["--nnodes", "2", "--node-rank", "0", "--rdzv-endpoint", "127.0.0.1:1", "train.py"]
    for variables, refused in (
        ({}, True),
        ({"SLURM_STEP_NUM_TASKS": "1"}, False),
        ({"SLURM_STEP_ID": str(0xFFFF_FFFB)}, False),
        ({"SLURM_PTY_PORT": "1"}, False),
    ):
        slurm = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_ID": "0", **variables}
        done = CliRunner(env=slurm).invoke(command, ["train.py", "--x", "1"])

        assert refused == ("python -m dptrace.record train.py --x 1" in str(done.exception)), done.exception
        assert refused == isinstance(done.exception, UsageError), variables
        assert 0 == CliRunner(env=slurm).invoke(command, ranks).exit_code, variables


def test_python_starts_one_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As without dptrace, unless --gpus asks for more; a script by itself is started once per GPU, twice without."""
    (tmp_path / "train.py").write_text(SCRIPT)
    for words, gpus, processes in (
        ("train.py", 0, 2),
        ("train.py", 4, 4),
        ("python -u train.py", 0, 1),
        ("python -m json.tool", 4, 1),
        ("--gpus 3 python train.py", 4, 3),
    ):
        jobs: list[Launch] = []
        monkeypatch.setattr("dptrace.commands.record._record", lambda job, *_, to=jobs: to.append(job))
        monkeypatch.setattr("dptrace.record.launch.launcher.local_gpu_count", lambda count=gpus: count)
        done = CliRunner().invoke(command, words.split())

        assert [processes] == [job.processes for job in jobs], done.exception
        assert (processes == 1) == jobs[0].is_alone, words


def test_measurements_of_the_links_must_be_there(tmp_path: Path) -> None:
    """--links with a file that is none is refused before any process starts."""
    (tmp_path / "other.json").write_text("{}")
    for name in ("none.json", "other.json"):
        told = CliRunner().invoke(
            command, ["--mode", "naive", "--links", str(tmp_path / name), "-o", str(tmp_path / "r")]
        )
        assert isinstance(told.exception, DptraceError)
        assert name in str(told.exception)


def test_resuming_without_a_checkpoint_is_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder and the step that the training starts from are printed, unless it has a checkpoint."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dptrace.commands.record._record", lambda *arguments: None)
    line = ["--mode", "ddp", "--gpus", "2", "--checkpoints", "kept", "--resume"]

    fresh = CliRunner().invoke(command, line)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "step-00000005").touch()
    continued = CliRunner().invoke(command, line)

    assert (0, 0) == (fresh.exit_code, continued.exit_code), fresh.output
    assert "kept" in fresh.output
    assert "step 0" in fresh.output
    assert "step 0" not in continued.output


# The help of dptrace record, and where its options end.


def _help(option: str) -> str:
    return CliRunner().invoke(command, [option], terminal_width=100).output


def _options(text: str) -> list[str]:
    return re.findall(r"^  (?:-\w, )?--(?:\[no-\])?([\w-]+)", text, re.MULTILINE)


def test_help_begins_with_what_concerns_a_script() -> None:
    """How to name it, which steps are recorded, then the options; the trainers' are not among them."""
    text = _help("--help")
    trainers = {option.name for option in OPTIONS if option.field not in SCRIPT_OPTIONS}

    assert text.index("-m MODULE") < text.index("recorded") < text.index("--steps N") < text.index("--help-trainers")
    assert ["gpus", "steps", "warmup", "wait"] == _options(text)[:4]
    assert not trainers & set(_options(text))
    assert "dptrace record torchrun --nproc-per-node 4 train.py" in text


@pytest.mark.heavy
def test_every_option_is_in_one_of_the_two_helps_once() -> None:
    """No option is forgotten, and every mode is described."""
    shown = [*_options(_help("--help")), *_options(_help("--help-trainers"))]
    declared = [
        parameter.opts[-1].removeprefix("--") if not parameter.opts[0].startswith("--") else parameter.opts[0][2:]
        for parameter in command.get_params(click.Context(command))
        if isinstance(parameter, click.Option) and not parameter.hidden
    ]

    assert sorted(declared) == sorted(shown)
    assert all(f"\n  {mode} " in _help("--help-trainers") for mode in MODES)


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("-m", cls=ModuleOption, expose_value=False)
@click.option("-o", "--output", "out")
@click.option("-q", "--quiet", is_flag=True)
@click.argument("script", nargs=-1, type=click.UNPROCESSED)
def _echo(**values: Any) -> None:
    click.echo(repr((values["out"], values["quiet"], values["script"])))


def test_the_options_end_at_m() -> None:
    """As for python: what follows -m belongs to the module, unless -m is an option's value or after the script."""
    for words, read in (
        ("-q -m pkg.train -q --out x", (None, True, ("-m", "pkg.train", "-q", "--out", "x"))),
        ("-mpkg.train -q", (None, False, ("-m", "pkg.train", "-q"))),
        ("-o -m train.py -m", ("-m", False, ("train.py", "-m"))),
        ("-o -m train.py", ("-m", False, ("train.py",))),
        ("-qo x -m pkg", ("x", True, ("-m", "pkg"))),
        ("-oq -m pkg", ("q", False, ("-m", "pkg"))),
        ("--output=x -m pkg", ("x", False, ("-m", "pkg"))),
        ("-- python -m pkg", (None, False, ("python", "-m", "pkg"))),
        ("train.py -m pkg", (None, False, ("train.py", "-m", "pkg"))),
    ):
        assert f"{read!r}\n" == CliRunner().invoke(_echo, words.split()).output, (words, read)


# What dptrace record prints.


INFO = {
    "folder": "runs/x",
    "notes": ["one\x1b[31m note"],
    "mode": None,
    "profiler_overhead": None,
    "world_size": 1,
    "ranks": [{"recorded_steps": 3}],
}


def _launch(stop: bool = False) -> Launch:
    return Launch(Path("runs/x"), False, Path("train.py"), (), 2, None, stop=stop)


def test_a_written_run_is_announced_with_the_next_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Whether training goes on is said only where it does; control characters of a note are not printed."""
    for goes_on, stop in ((True, False), (True, True), (False, False)):
        RunReporter(_launch(stop), False, lambda done, what: None).recorded(INFO, goes_on)
        printed = capsys.readouterr().err

        assert "Wrote runs/x: 3 steps of 1 rank." in printed, (goes_on, stop)
        assert "dptrace analyze runs/x" in printed, (goes_on, stop)
        assert (goes_on and not stop) == ("Ctrl-C" in printed), (goes_on, stop)
        assert "\x1b" not in printed, (goes_on, stop)


def test_a_run_that_had_to_take_another_name_is_pointed_out(capsys: pytest.CaptureFixture[str]) -> None:
    """The number of a later run is part of its name; an ending is not."""
    for folder, other in (("runs/x", False), ("runs/x-2", False), ("runs/x.run", True)):
        RunReporter(_launch(), False, lambda done, what: None).recorded(INFO | {"folder": folder}, False)

        assert other == ("the run is in" in capsys.readouterr().err), (folder, other)
