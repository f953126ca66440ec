"""``python -m dptrace.record`` in the ranks that any launcher starts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
from click.testing import CliRunner

from dptrace.commands.shared.main import cli
from tests.support.faults import setting
from tests.support.forking import run_python, start_python
from tests.support.launchers import launched
from tests.support.processes import processes_in, wait_until
from tests.support.recordings import environment

pytest.importorskip("torch")
pytestmark = pytest.mark.spawn

SCRIPT = """
import os, sys
import torch, torch.distributed as dist

number, ranks = (int(os.environ[name]) for name in sys.argv.pop().split(","))
dist.init_process_group("gloo", init_method="file://" + os.path.abspath("meet"), rank=number, world_size=ranks)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(8):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print(__name__, sys.argv)
dist.destroy_process_group()
"""
ALONE = """
import torch
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(12):
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
print("trained")
"""
SCHEDULE = ("--steps", "2", "--warmup", "2")


def _info(run: Path) -> dict[str, Any]:
    info: dict[str, Any] = json.loads((run / "run.json").read_text())
    return info


@pytest.mark.parametrize(
    ("names", "first"),
    [
        (("SLURM_PROCID", "SLURM_NTASKS"), ()),
        pytest.param(("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"), (), marks=pytest.mark.slow),
        pytest.param(("RANK", "WORLD_SIZE"), ("--local_rank={}",), marks=pytest.mark.slow),
    ],
)
def test_each_rank_records_itself_whatever_starts_it(
    names: tuple[str, str], first: Sequence[str], tmp_path: Path
) -> None:
    """srun, mpirun and deepspeed, which puts a word for the script before all others: one run with all ranks."""
    ranks = [{names[0]: str(rank), names[1]: "2"} for rank in range(2)]
    words = ["-m", "dptrace.record", *(word.format(0) for word in first), *SCHEDULE, "-o", "run", "train.py", "a"]
    for attempt in range(2):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        (folder / "train.py").write_text(SCRIPT)
        ends = launched([*words, ",".join(names)], ranks, folder)
        # In one of a hundred runs, native code of torch finds its heap corrupted and aborts; nothing here decides that.
        if not any(end.returncode == -signal.SIGABRT for end in ends):
            break

    assert [0, 0] == [end.returncode for end in ends], ends[0].stderr + ends[1].stderr
    expected = f"__main__ {['train.py', *(word.format(0) for word in first), 'a']}\n"
    assert [expected, expected] == [end.stdout for end in ends]
    info = _info(folder / "run")
    assert ("complete", 2, [2, 2]) == (
        info["status"],
        info["world_size"],
        [rank["recorded_steps"] for rank in info["ranks"]],
    )
    assert ["run"] == [path.name for path in folder.iterdir() if path.is_dir()]


LOOP = """
import os, sys, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
how, rank = sys.argv[1], dist.get_rank()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(2000):
    if step == 8:
        open(f"in{rank}", "w").close()
    if step == 8 and rank == int(sys.argv[2]):
        if how == "wait":
            time.sleep(100)
        if how == "kill":
            os.kill(os.getpid(), 9)
        raise ValueError("boom")
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "name"), [("SIGINT", "run"), ("SIGTERM", "run.failed"), ("SIGKILL", "run.failed")])
def test_ranks_of_a_launcher_that_ends_write_their_steps(number: str, name: str, tmp_path: Path) -> None:
    """torchrun passes signals on, or dies; rank 0 waits for what the others write, and no hidden folder stays."""
    (tmp_path / "train.py").write_text(LOOP)
    options = ["--warmup", "2", "--steps", "3000", "-o", "run"]
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "dptrace.record"]
    command = [*command, *options]
    if number == "SIGKILL":
        command = ["-m", "dptrace", "record", *options, "torchrun", *command[2:5]]
    launcher = start_python(
        *command, "train.py", "wait", "0", cwd=tmp_path, stderr=subprocess.DEVNULL, env=environment()
    )
    wait_until(lambda: len(list(tmp_path.glob("in*"))) == 2)
    launcher.send_signal(getattr(signal, number))
    launcher.wait(120)
    wait_until(lambda: not processes_in(tmp_path))

    assert 0 != launcher.returncode
    assert [name] == [path.name for path in tmp_path.iterdir() if path.is_dir()]
    assert [0, 1] == [rank["rank"] for rank in _info(tmp_path / name)["ranks"] if rank["recorded_steps"] > 4]


@pytest.mark.slow
def test_a_training_outlives_the_shell_that_started_it(tmp_path: Path) -> None:
    """As without dptrace: a job that is started in the background goes on when its shell ends."""
    loop = "for step in range(60):\n    open('begun', 'w').close() if step == 8 else None\n    time.sleep(0.02)"
    (tmp_path / "train.py").write_text("import time" + ALONE.replace("for _ in range(12):", loop))
    words = f"{sys.executable} -m dptrace.record {' '.join(SCHEDULE)} -o run train.py"
    shell = f"{words} > out 2>&1 & while [ ! -e begun ] && kill -0 $!; do sleep 0.02; done"
    subprocess.run(["sh", "-c", shell], cwd=tmp_path, env=environment(), timeout=120, check=True)
    wait_until(lambda: not processes_in(tmp_path))

    assert "trained" in (tmp_path / "out").read_text()
    assert "complete" == _info(tmp_path / "run")["status"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "who", "blamed", "ranks"), [("raise", 0, 0, [0, 1]), ("raise", 1, 1, [0, 1]), ("kill", 0, None, [1])]
)
def test_the_rank_that_failed_is_blamed_and_not_its_peers(
    how: str, who: int, blamed: int | None, ranks: list[int], tmp_path: Path
) -> None:
    """No rank that failed for want of another one, or that the launcher ended; the last one to end keeps the traces."""
    (tmp_path / "train.py").write_text(LOOP)
    words = ["--warmup", "2", "--steps", "30", "-o", "run", "train.py", how, str(who)]
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "dptrace.record"]
    assert 0 != run_python(*torchrun, *words, cwd=tmp_path, env=environment()).returncode

    assert ["run.failed"] == [path.name for path in tmp_path.iterdir() if path.is_dir()]
    info = _info(tmp_path / "run.failed")
    assert blamed == info["failure"]["rank"], info["failure"]
    assert ranks == [rank["rank"] for rank in info["ranks"] if rank["recorded_steps"] == 5]


def _alone(folder: Path, *words: str, script: str = ALONE, more: Mapping[str, str] | None = None) -> Any:
    (folder / "train.py").write_text(script)
    return run_python("-m", "dptrace.record", *words, "train.py", cwd=folder, env=environment() | dict(more or {}))


def test_a_run_is_replaced_only_on_request_and_before_training(tmp_path: Path) -> None:
    """Exit code 2 before the training starts; ranks that a launcher has restarted train on without recording."""
    assert 0 == _alone(tmp_path, *SCHEDULE).returncode
    created = _info(tmp_path / "runs" / "train")["created"]
    again = _alone(tmp_path, *SCHEDULE)
    other = _alone(tmp_path, *SCHEDULE, more={"RANK": "1"})
    restarted = _alone(tmp_path, *SCHEDULE, more={"TORCHELASTIC_RESTART_COUNT": "1"})

    assert (2, "", True) == (again.returncode, again.stdout, "runs/train" in again.stderr)
    assert (2, "") == (other.returncode, other.stderr)
    assert (0, "trained\n") == (restarted.returncode, restarted.stdout)
    assert created == _info(tmp_path / "runs" / "train")["created"]
    (tmp_path / "runs" / "train" / "run.json").write_text('{"schema": 1, "status": "", "world_size": 1}')
    assert 0 == _alone(tmp_path, *SCHEDULE, "--force").returncode
    assert "complete" == _info(tmp_path / "runs" / "train")["status"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--warmup", "1"], 2, "--warmup 1"),
        (["--light", "--modules"], 2, "--modules"),
        (["--duration", "3", "--steps", "3"], 2, "--duration"),
        (["-m"], 2, "train.py"),
    ],
)
def test_what_makes_no_sense_is_refused_in_the_rank(words: list[str], code: int, says: str, tmp_path: Path) -> None:
    """Before the script runs, with the option that is wrong."""
    done = _alone(tmp_path, *words)

    assert (code, "", True) == (done.returncode, done.stdout, says in done.stderr), done.stderr


_TAKES = "from pathlib import Path\nPath('runs/train').mkdir(parents=True)\nPath('runs/train/mine').touch()\n"
_POOL = "from concurrent.futures import ThreadPoolExecutor\npool = ThreadPoolExecutor(1)\npool.submit(int).result()\n"


@pytest.mark.parametrize(
    ("script", "says", "recorded"),
    [
        ("print('trained')", "train.py", False),
        (ALONE.replace("12", "3"), "3 steps", False),
        (_TAKES + ALONE, "more than a recorded run", False),
        (_POOL + ALONE, "Wrote", True),
    ],
    ids=["no steps", "too few", "a folder taken meanwhile", "a pool left open, as torch.compile leaves one"],
)
def test_what_cannot_be_recorded_is_no_failure(script: str, says: str, recorded: bool, tmp_path: Path) -> None:
    """The training has succeeded: the reason is printed, and no exit code ends the launcher's other ranks."""
    done = _alone(tmp_path, *SCHEDULE, script=script)

    assert (0, "trained\n", True) == (done.returncode, done.stdout, says in done.stderr), done.stderr
    assert recorded == (tmp_path / "runs" / "train" / "run.json").exists()


@pytest.mark.parametrize("since", [".", ".t.recording", ".t.recording/owner"])
def test_a_full_disk_is_named_and_leaves_nothing(since: str, tmp_path: Path) -> None:
    """From the start, and from the first file on: the training goes on, and no hidden folder stays."""
    done = _alone(tmp_path, *SCHEDULE, "-o", "t", more=setting("all", "ENOSPC", since))

    assert (0, "trained\n", True) == (done.returncode, done.stdout, "No space left" in done.stderr), done.stderr
    assert ["train.py"] == [path.name for path in tmp_path.iterdir()]


def test_q_silences_dptrace_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the script prints stays; in front of a launcher's command line, each rank gets the option."""
    done = _alone(tmp_path, "-q", *SCHEDULE)
    assert (0, "trained\n", False) == (done.returncode, done.stdout, "Wrote" in done.stderr), done.stderr

    def become(line: list[str]) -> NoReturn:
        raise SystemExit(" ".join(line))

    monkeypatch.setattr("dptrace.commands.record.become", become)
    monkeypatch.chdir(tmp_path)
    words = ["record", "-q", *SCHEDULE, "--force", "torchrun", "--standalone", "train.py"]
    started = CliRunner().invoke(cli, words)
    assert " -q " in started.output.split("dptrace.record")[1], started.output
