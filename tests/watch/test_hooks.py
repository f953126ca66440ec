"""What a watch hears in one process, and what it leaves alone."""

from __future__ import annotations

import copy
import hashlib
import itertools
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="watching needs torch")

import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset, dataloader  # noqa: E402

import dptrace  # noqa: E402
from dptrace.record.distributed import RankStore  # noqa: E402
from dptrace.record.steps import current_counter  # noqa: E402
from dptrace.watch import capture  # noqa: E402
from dptrace.watch.records import BACKWARD, COLLECTIVE, GROUP, Tail, read  # noqa: E402
from dptrace.watch.session import Settings, Watch  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # torch's own, which differ from version to version


def seen() -> list[Any]:
    """Return what a watch replaces."""
    return [
        *(nn.Module.__call__, nn.Linear.__call__, DataLoader.__iter__, dataloader._BaseDataLoaderIter.__next__),
        *(vars(dist.ProcessGroup)["allreduce"], vars(dist.Work)["wait"], torch.autograd._engine_run_backward),
    ]


@pytest.fixture
def watch(tmp_path: Path) -> Iterator[Watch]:
    """Watch during a test; afterwards nothing is wrapped."""
    before = seen()
    watched = Watch(Settings(str(tmp_path / "w"), follows=False)).install()
    yield watched
    watched.close(None)
    assert before == seen()
    assert current_counter() is None


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Join a process group of one rank."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


class Net(nn.Module):
    """Three layers and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rest = nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1), nn.Linear(8, 1))

    def forward(self, x: Any) -> Any:
        """Compute the output."""
        return self.rest(torch.relu(self.first(x)))


def train(model: nn.Module, steps: int = 12, before: Any = lambda: None) -> str:
    """Train, and return a digest of the parameters."""
    torch.manual_seed(3)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    optimizer = torch.optim.Adam(model.parameters())
    loader = DataLoader(TensorDataset(torch.randn(2 * steps, 4)), batch_size=2, shuffle=True)
    for (batch,) in loader:
        before()
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    return hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()


def steps_of(watched: Watch) -> Any:
    watched.flush()
    return read(watched.folder / "rank0000.steps")


def test_each_step_has_its_stages(watch: Watch) -> None:
    """Where a step spends its time is in the record of the step; the stages add up to it."""
    train(Net(), before=lambda: time.sleep(0.004))
    steps = steps_of(watch)

    assert list(range(1, 12)) == steps["step"].tolist()
    stages = sum(steps[f"{stage}_ns"] for stage in ("data", "forward", "backward", "optimizer", "other"))
    assert (abs(stages - (steps["end_ns"] - steps["begin_ns"])) < 200_000).all()
    assert (steps["other_ns"] > 3_500_000).all()
    assert (steps["forward_ns"][1:] > 0).all()
    assert (steps["backward_ns"] > 0).all()
    assert (steps["optimizer_ns"] > 0).all()
    assert (steps["items"][1:] == 2).all()


def test_parameters_are_the_same_bit_for_bit(watch: Watch, group: None) -> None:
    """Under DistributedDataParallel with dropout, watched and not."""
    watched = train(nn.parallel.DistributedDataParallel(Net()))
    watch.close(None)

    assert train(nn.parallel.DistributedDataParallel(Net())) == watched


def test_ddp_and_collectives_have_arrivals(watch: Watch, group: None) -> None:
    """Each backward under DDP is a collective, from when the gradients are there; so is each call of one."""
    train(nn.parallel.DistributedDataParallel(Net()), 4, lambda: dist.all_reduce(torch.ones(1)))
    dist.all_reduce(torch.ones(1), async_op=True).wait()
    watch.flush()
    calls = read(watch.folder / "rank0000.calls")
    met = calls[calls["kind"] == COLLECTIVE]

    assert 2 == (calls["kind"] == GROUP).sum()
    assert (4, 5) == ((met["stage"] == BACKWARD).sum(), (met["stage"] != BACKWARD).sum())
    assert (met["arrival_ns"] <= met["waits_ns"]).all()
    assert (met["waits_ns"] <= met["end_ns"]).all()


def test_collectives_may_be_waited_for_in_any_order(watch: Watch, group: None) -> None:
    """As FSDP does: what is read of them does not end there as if it were damaged."""
    train(Net(), 4)
    first = dist.all_reduce(torch.ones(1), async_op=True)
    time.sleep(0.01)
    second = dist.all_reduce(torch.ones(1), async_op=True)
    second.wait()
    first.wait()
    watch.flush()
    calls = Tail(watch.folder / "rank0000.calls")
    met = [call for call in calls.read() if call["kind"] == COLLECTIVE]

    assert [2, 1] == [call["sequence"] for call in met]
    assert "" == calls.problem


def test_captures_of_two_watches_of_a_process_agree_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The store of the ranks still has what those of the first have agreed on."""
    names: list[str] = []

    class Noted(RankStore):
        def __init__(self, name: str) -> None:
            names.append(name)
            super().__init__(name)

    monkeypatch.setattr(capture, "RankStore", Noted)
    for folder in ("a", "b"):
        capture.Captures(tmp_path / folder).step(1)

    assert 2 == len(set(names)) == len(names)


def test_after_its_end_collectives_work(watch: Watch, group: None) -> None:
    """Each method of torch's C++ classes is what it was, bound to its object."""
    tensor = torch.ones(2)
    watch.close(None)
    dist.barrier()
    dist.broadcast(tensor, 0)
    dist.all_gather([torch.empty(2)], tensor)
    dist.all_reduce(tensor, async_op=True).wait()

    assert [1.0, 1.0] == tensor.tolist()


@pytest.mark.heavy
def test_a_model_that_comes_later_is_found(watch: Watch) -> None:
    """The outermost classes are learnt once more if a step has no forward."""
    net = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for _ in range(450):
        net(torch.ones(4)).sum().backward()
        optimizer.step()
    train(Net(), 40)
    steps = steps_of(watch)

    assert (steps["forward_ns"][-20:] > 0).all()


@pytest.mark.slow
def test_torch_compile_sees_nothing_of_it(watch: Watch) -> None:
    """A whole graph is compiled while the classes are learnt, and afterwards."""
    x = torch.randn(2, 4)
    for _ in range(2):
        torch._dynamo.reset()
        compiled = torch.compile(Net(), backend="eager", fullgraph=True)
        compiled(x).sum().backward()
        net = Net()
        for _ in range(120):
            net(x)
    function = torch.compile(lambda model, x: model(x) + 1, backend="eager", fullgraph=True)

    assert (2, 1) == function(Net(), x).shape


def test_models_can_be_copied_and_point_to_point_works(watch: Watch, group: None) -> None:
    """What a script does with torch's functions and its modules is as before."""
    net = Net()
    train(net)

    assert copy.deepcopy(net) is not net
    assert dist.P2POp(dist.isend, torch.ones(1), 0).op is dist.isend


@pytest.mark.heavy
def test_a_forked_child_writes_nothing(watch: Watch) -> None:
    """A worker of a loader inherits the hooks, and is no rank."""
    train(Net())
    watch.flush()
    size = (watch.folder / "rank0000.steps").stat().st_size
    child = os.fork()
    if not child:
        try:
            train(Net(), 40)
            watch.flush()
        finally:
            os._exit(0)
    os.waitpid(child, 0)

    assert size == (watch.folder / "rank0000.steps").stat().st_size


def test_an_error_of_the_watch_ends_only_the_watch(
    watch: Watch, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It says so once, and the training goes on."""

    def fail(*_: object) -> None:
        raise ValueError("broken")

    monkeypatch.setattr(watch, "begin_step", fail)
    train(Net())

    assert 1 == capfd.readouterr().err.count("broken")
    assert not watch.on


def test_the_script_says_where_steps_end(watch: Watch) -> None:
    """``dptrace.record.step()`` counts instead of the optimizer."""
    import sys

    from dptrace.record import step

    train(Net())
    for _ in range(3):
        step()
    del sys.modules["dptrace.record.script.explicit_step"]  # which says that a script may call it

    assert 3 == watch.step


@pytest.mark.slow
def test_a_tracker_gets_the_figures_of_rank_0(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any function of figures and step, every 10 s and at the end; one that fails ends nothing."""
    from dptrace.watch import tracking

    told: list[tuple[dict[str, float], int]] = []
    monkeypatch.setattr(tracking, "EVERY_NS", 0)
    monkeypatch.setattr("dptrace.watch.session._LOOK_NS", 0)
    with dptrace.watch(tmp_path / "a", quiet=True, log=lambda figures, step: told.append((figures, step))):
        train(Net(), before=lambda: time.sleep(0.002))
    figures = [figures for figures, _ in told if "watch/step_ms" in figures]

    assert len(figures) > 8
    assert all(earlier <= later for (_, earlier), (_, later) in itertools.pairwise(told))
    parts = ("data", "forward", "backward", "optimizer", "other", "waiting")
    for one in figures:
        assert one["watch/step_ms"] == pytest.approx(sum(one[f"watch/{part}_ms"] for part in parts), rel=0.05, abs=0.05)
    assert told[-1][0]["watch/median_step_ms"] > 2  # what the reader has found


@pytest.mark.slow
def test_a_tracker_that_fails_is_not_called_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The training goes on as without it."""
    from dptrace.record import safety

    calls = []

    def log(figures: dict[str, float], step: int) -> None:
        calls.append(step)
        raise ConnectionError("no network")

    part = safety.parts["dptrace.watch.tracking.Tracked.tell"]
    monkeypatch.setattr("dptrace.watch.session._LOOK_NS", 0)
    monkeypatch.setattr("dptrace.watch.tracking.EVERY_NS", 0)
    expected = train(Net())
    with dptrace.watch(tmp_path / "a", quiet=True, log=log):
        digest = train(Net())
    monkeypatch.setattr(part, "failed", False)

    assert (1, expected) == (len(calls), digest)
    assert "no network" in capsys.readouterr().err
