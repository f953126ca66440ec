"""Run small trainings plainly and recorded, each in a fork of one process that has imported torch, and compare ends.

``python -m tests.support.unharmed JOB.json``, by way of ``forking.run_python``: JOB names the cases, and takes their
ends. A fork costs a fraction of a second, so that hundreds of recordings fit into a test.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import runpy
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from tests.support.forking import run_python
from tests.support.recordings import environment

_HEAD = """
import sys, torch
from pathlib import Path
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(16, 4))
data = torch.randn(32, 8)

def loss_of(model=model):
    return (model(data) ** 2).mean()

def end(loss, rank=0, model=model):
    state = [p.detach().numpy().tobytes() for p in model.parameters()] + [torch.get_rng_state().numpy().tobytes()]
    Path(f"parameters{rank}").write_bytes(b"".join(state))
    print("the last loss is", loss.item(), flush=True)
"""
_OPTIMIZER = """
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
"""
_TAIL = """
end(loss)
"""
_RANKS = """
import os
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

kept = []

def train(rank, ranks):
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    torch.manual_seed(rank)
    # Kept: torch itself may wait for ever where the last reference to DDP ends soon after a collective.
    kept.append(parallel := DistributedDataParallel(model))
    optimizer = torch.optim.SGD(parallel.parameters(), lr=1e-2)
    for step in range(16):
        optimizer.zero_grad()
        loss = loss_of(parallel)
        loss.backward()
        optimizer.step()
    end(loss, rank)
    dist.destroy_process_group()
"""
TRAININGS = {
    "loop": """
for step in range(40):
    optimizer.zero_grad(); loss = loss_of(); loss.backward(); optimizer.step()
""",
    "closure": """
optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
def closure():
    optimizer.zero_grad(); loss = loss_of(); loss.backward(); return loss
for step in range(12):
    loss = optimizer.step(closure)
""",
    "two optimizers": """
other = torch.nn.Linear(4, 4); critic = torch.optim.RMSprop(other.parameters())
for step in range(40):
    optimizer.zero_grad(); loss = (other(model(data)) ** 2).mean(); loss.backward(); optimizer.step()
    critic.zero_grad(); other(model(data).detach()).abs().mean().backward(); critic.step()
    for parameter in other.parameters(): parameter.data.clamp_(-0.5, 0.5)
""",
    "accumulation and evaluation": """
for step in range(12):
    model.train()
    for micro in range(3):
        loss = loss_of() / 3; loss.backward()
    optimizer.step(); optimizer.zero_grad()
    model.eval()
    with torch.no_grad(): loss = loss_of()
""",
    "optimizer in backward": """
optimizers = {p: torch.optim.Adam([p], lr=1e-3) for p in model.parameters()}
def hook(p):
    optimizers[p].step(); optimizers[p].zero_grad()
for p in model.parameters(): p.register_post_accumulate_grad_hook(hook)
for step in range(40):
    loss = loss_of(); loss.backward()
""",
    "no optimizer": """
for step in range(40):
    loss = loss_of(); loss.backward()
    with torch.no_grad():
        for p in model.parameters(): p -= 1e-2 * p.grad; p.grad = None
""",
    "copies": """
import copy
average = torch.optim.swa_utils.AveragedModel(model)
for step in range(40):
    optimizer.zero_grad(); loss = loss_of(); loss.backward(); optimizer.step()
    average.update_parameters(model); best = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer)
""",
    "own profiler": """
plan = torch.profiler.schedule(wait=6, warmup=1, active=2, repeat=2)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=plan) as profiler:
    for step in range(40):
        optimizer.zero_grad(); loss = loss_of(); loss.backward(); optimizer.step(); profiler.step()
""",
    "ranks": _RANKS
    + """
train(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
""",
    "own ranks": _RANKS
    + """
import torch.multiprocessing as mp
if __name__ == "__main__":
    processes = [mp.get_context("fork").Process(target=train, args=(rank, 2)) for rank in range(2)]
    for process in processes: process.start()
    for process in processes: process.join()
    print("ended", [process.exitcode for process in processes])
""",
}
"""Ten ways to train, by their names; a step of each is its own."""
_OWN_END = ("ranks", "own ranks")
_LIMIT_S = 60.0


_API = """
from dptrace.record import record

def recorded(steps):
    with record("run", steps=2, warmup=2) as recording:
        for step in steps:
            yield step
            recording.step()
"""


def with_api(text: str) -> str:
    """Return a script whose loop records itself."""
    assert "for step in range(" in text
    return _API + re.sub(r"for step in (range\(\d+\))", r"for step in recorded(\1)", text)


def script(name: str) -> str:
    """Return a training as a script, which prints its loss last and saves its parameters."""
    optimizer = "" if name == "no optimizer" else _OPTIMIZER
    return _HEAD + optimizer + TRAININGS[name] + ("" if name in _OWN_END else _TAIL)


class End(NamedTuple):
    """How a case ended."""

    training: list[Any]
    """Exit codes, last lines and digests of what was saved, by rank."""
    recorded: bool
    """Whether there is a complete run."""
    said: str
    """Standard error of all ranks."""
    reached: list[str]
    """The parts of the recorder that its processes have called, of a case that asks."""


def ends(folder: Path, cases: list[dict[str, Any]]) -> list[End]:
    """Run cases, and return how each ended.

    Args:
        folder: where they run.
        cases: per case ``script`` (text), ``arguments`` (of the script), ``how`` (``plain``, ``rank`` as by ``python -m
            dptrace.record``), ``ranks`` (how many processes), ``broken`` (the parts of the recorder that fail)
            and ``reached`` (whether to say which parts are called).
    """
    folder.mkdir(exist_ok=True)
    job = folder / "job.json"
    job.write_text(json.dumps([{"folder": str(folder / f"case{i}"), **case} for i, case in enumerate(cases)]))
    done = run_python("-m", "tests.support.unharmed", str(job), cwd=folder, env=environment())
    assert 0 == done.returncode, done.stderr
    return [End(*end) for end in json.loads(job.read_text())]


def _main(job: Path) -> None:
    results = []
    cases = json.loads(job.read_text())
    # Plain ones first, of processes that know nothing of the recorder; then it need not be imported in each.
    for number in sorted(range(len(cases)), key=lambda number: cases[number]["how"] != "plain"):
        case = cases[number]
        if case["how"] != "plain":
            importlib.import_module("dptrace.record.script.runner")
        folder = Path(case["folder"])
        folder.mkdir()
        (folder / "train.py").write_text(case["script"])
        count, port = case.get("ranks", 1), str(_free_port())
        processes = [_start(case, folder, rank, count, port) for rank in range(count)]
        codes = [_wait(process) for process in processes]
        last = [(folder / f"out{rank}").read_text().splitlines()[-1:] for rank in range(count)]
        said = "".join((folder / f"err{rank}").read_text() for rank in range(count))
        saved = [hashlib.sha1(path.read_bytes()).hexdigest() for path in sorted(folder.glob("parameters*"))]
        reached = sorted({path.name for path in folder.glob("reached/*")})
        results.append((number, End([codes, last, saved], (folder / "run" / "run.json").exists(), said, reached)))
        shutil.rmtree(folder)
    job.write_text(json.dumps([end for _, end in sorted(results)]))


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _wait(process: int) -> int:
    until = time.monotonic() + _LIMIT_S
    while True:
        found, status = os.waitpid(process, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > until:
            os.kill(process, signal.SIGABRT)  # prints the stacks
            until += _LIMIT_S
        time.sleep(0.005)


def _start(case: dict[str, Any], folder: Path, rank: int, count: int, port: str) -> int:
    process = os.fork()
    if process:
        return process
    try:
        for file, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(folder / f"{name}{rank}", os.O_WRONLY | os.O_CREAT), file)
        os.chdir(folder)
        os.environ.update({"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
        if count > 1:
            os.environ.update({"RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_RANK": str(rank)})
        if case["how"] == "plain":
            _run_plain(case)
        if "broken" in case:
            _break(case["broken"])
        if case.get("reached"):
            _note(folder / "reached")
        from dptrace.record.__main__ import main

        options = ["--steps", "2", "--warmup", "2", "--modules", "-o", "run"]
        sys.argv = ["dptrace.record", *options, "train.py", *case.get("arguments", [])]
        sys.path[0] = str(folder)
        main()
    except SystemExit as end:
        _leave(end.code if isinstance(end.code, int) else 1)
    except BaseException:
        traceback.print_exc()
    _leave(70)


def _run_plain(case: dict[str, Any]) -> NoReturn:
    sys.argv = ["train.py", *case.get("arguments", [])]
    try:
        runpy.run_path("train.py", run_name="__main__")
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            print(end.code, file=sys.stderr)
        _leave(end.code & 0xFF if isinstance(end.code, int) else int(end.code is not None))
    except BaseException as error:
        with suppress(Exception):
            sys.excepthook(type(error), error, error.__traceback__)
        _leave(1)
    _leave(0)


def _leave(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class _Changed(dict[str, Any]):
    """The parts of the recorder, of which each is changed as soon as it is known."""

    def __init__(self, change: Callable[[str, Any], None]) -> None:
        self.change = change

    def __setitem__(self, name: str, part: Any) -> None:
        self.change(name, part)
        super().__setitem__(name, part)


def _change(change: Callable[[str, Any], None]) -> None:
    from dptrace.record import safety

    known, safety.parts = safety.parts, _Changed(change)
    for name, part in known.items():
        safety.parts[name] = part


def _break(broken: list[str]) -> None:
    """Let parts fail."""

    def fail(*arguments: Any, **keywords: Any) -> Any:
        raise ValueError("broken for a test")

    def change(name: str, part: Any) -> None:
        if name in broken:
            part.function = fail

    _change(change)


def _note(folder: Path) -> None:
    """Leave a file named after each part that is called."""
    folder.mkdir(exist_ok=True)

    def change(name: str, part: Any) -> None:
        function = part.function

        def noted(*arguments: Any, **keywords: Any) -> Any:
            (folder / name).touch()
            return function(*arguments, **keywords)

        part.function = noted

    _change(change)


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
