"""Options of a recording, and ways to train, with real processes of a script that is not changed for them."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import dptrace
from benchmarks.training_scripts import FRAMEWORKS, SCRIPTS
from tests.support import recordings
from tests.support.forking import run_python

pytest.importorskip("torch")

pytestmark = [pytest.mark.spawn, pytest.mark.slow]

SCRIPT = """
import os
import torch, torch.distributed as dist

dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
model = torch.nn.parallel.DistributedDataParallel({model})
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler("cpu", enabled={amp})
for number in range(9):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled={amp}):
        loss = model(torch.ones(8, 16)).float().square().sum()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    {more}
print("trained")
dist.destroy_process_group()
"""
DIES_ONCE = """if number == 2 and dist.get_rank() == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), 9)"""
SCHEDULE = ("--gpus", "2", "--steps", "2", "--warmup", "2", "-o", "run")


@pytest.mark.parametrize(
    ("options", "changes", "event"),
    [
        (["--memory"], {}, "[memory]"),
        (["--modules"], {}, "dptrace::module 0"),
        ([], {"amp": "True"}, "aten::_amp_update_scale_"),
        ([], {"model": "torch.compile(model, backend='aot_eager')"}, "Torch-Compiled Region"),
        (["--max-restarts", "1"], {"more": DIES_ONCE}, "Optimizer.step#SGD.step"),
    ],
    ids=["memory", "modules", "amp", "compile", "restart"],
)
def test_a_training_is_recorded_on_all_its_ranks(
    options: list[str], changes: dict[str, str], event: str, tmp_path: Path
) -> None:
    """Each step has forward, backward and optimizer; what was asked for, or is special about it, is in the traces."""
    text = SCRIPT.format(**({"model": "model", "amp": "False", "more": "pass"} | changes))
    (tmp_path / "train.py").write_text(text)
    done = recordings.dptrace("record", *SCHEDULE, *options, "train.py", cwd=tmp_path)

    assert "trained" in done.stdout
    run = dptrace.open(tmp_path / "run")
    assert ("complete", 2, int("--max-restarts" in options)) == (
        run.metadata["status"],
        run.world_size,
        len(run.metadata["restarts"]),
    )
    assert all(any(name.startswith(event) for name in names) for names in _names_of_two_steps(run))


def _names_of_two_steps(run: dptrace.Run) -> Iterator[list[str]]:
    """Check that both ranks have two steps with all phases, and return the names of each rank's events."""
    split = run.steps()
    assert [2, 2] == split.groupby("rank")["step"].count().tolist()
    assert (split[["forward_ns", "backward_ns", "optimizer_ns"]] > 0).all(axis=None)
    for rank in range(2):
        with gzip.open(f"{run.path}/rank{rank}.pt.trace.json.gz") as file:
            yield [entry.get("name", "") for entry in json.load(file)["traceEvents"] if entry.get("ph") != "M"]


TESTED = ("nanogpt", "fsdp2", *FRAMEWORKS)
"""benchmarks/record_survey.py records the others too."""


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", TESTED)
def test_a_well_known_way_to_train_is_recorded_unchanged(name: str, tmp_path: Path) -> None:
    """Two steps of both ranks, with one pass of the loop in each, forward, backward and optimizer, and no note."""
    if name in FRAMEWORKS:
        pytest.importorskip(FRAMEWORKS[name], reason="needs the extra frameworks")
    (tmp_path / "train.py").write_text(SCRIPTS[name])
    done = recordings.dptrace("record", *SCHEDULE, "--wait", "2", "train.py", cwd=tmp_path)

    assert "trained" in done.stdout
    run = dptrace.open(tmp_path / "run")
    assert ("complete", []) == (run.metadata["status"], run.metadata["notes"])
    for names in _names_of_two_steps(run):
        assert 2 == sum(label.startswith("Optimizer.step") for label in names)


SEVERAL = """
import torch
from dptrace.record import record

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for name in ("first", "second"):
    with record(name, steps=2, warmup=2) as recording:
        for _ in range(5):
            model(torch.ones(2, 4)).sum().backward()
            optimizer.step()
            recording.step()
print("trained")
"""


@pytest.mark.parametrize("launched", [False, True])
def test_a_script_may_record_several_times(launched: bool, tmp_path: Path) -> None:
    """By itself, each recording has its folder; under dptrace record, the first is the run, and a line says so."""
    (tmp_path / "train.py").write_text(SEVERAL)
    command = ["-m", "dptrace", "record", "--gpus", "1", "-o", "run", "train.py"] if launched else ["train.py"]
    done = run_python(*command, cwd=tmp_path, env=recordings.environment())

    assert (0, True) == (done.returncode, "trained" in done.stdout), done.stderr
    infos = {path.parent.name: json.loads(path.read_text()) for path in tmp_path.glob("*/run.json")}
    assert ({"run"} if launched else {"first", "second"}) == infos.keys()
    assert all(2 == info["ranks"][0]["recorded_steps"] for info in infos.values())
    assert launched == ("another recording" in done.stderr)
