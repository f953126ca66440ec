"""The hooks around a training: what they hear, when they are there, and what torch.compile sees of them."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="recording needs torch")

import torch.distributed as dist  # noqa: E402
import torch.nn.modules.module as modules  # noqa: E402
import torch.optim.optimizer as optimizers  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from dptrace.record import hooks, record  # noqa: E402
from dptrace.record.gloo import GlooThreads  # noqa: E402
from dptrace.record.hooks import Listener, in_backward, leave, listen  # noqa: E402
from tests.support.unharmed import ends, script  # noqa: E402

pytestmark = pytest.mark.filterwarnings("default")  # torch's own, which differ from version to version


class Heard(Listener):
    """Keeps what it hears."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def before_optimizer(self, optimizer: Any, arguments: Any) -> None:
        """Keep that."""
        self.said.append("before")

    def after_optimizer(self, optimizer: Any) -> None:
        """Keep that, and whether it was inside backward."""
        self.said.append("inside" if in_backward() else "after")

    def after_backward(self, accumulates: bool) -> None:
        """Keep that, and of which kind it was."""
        assert not in_backward()
        self.said.append("backward" if accumulates else "grad")


@pytest.fixture
def heard() -> Any:
    """Listen during a test."""
    listener = Heard()
    listen(listener)
    yield listener
    leave(listener, at_once=True)


def counts() -> tuple[int, ...]:
    """Return how many of torch's global hooks there are, and whether its engine is wrapped."""
    return (
        len(optimizers._global_optimizer_pre_hooks),
        len(optimizers._global_optimizer_post_hooks),
        len(modules._global_forward_hooks) + len(modules._global_forward_pre_hooks),
        int(torch.autograd._engine_run_backward.__closure__ is not None),
        int(nn.Module.eval.__closure__ is not None),
    )


PLAIN = counts()


def test_a_pass_is_heard_once_whatever_runs_in_it(heard: Heard) -> None:
    """Reentrant checkpointing runs backward within backward; grad() is of another kind; an error is no pass."""
    x = torch.ones(2, requires_grad=True)
    checkpoint(torch.exp, x, use_reentrant=True).sum().backward()
    torch.autograd.grad((x * x).sum(), x)
    with pytest.raises(RuntimeError):
        x.detach().sum().backward()

    assert ["backward", "grad"] == heard.said


def test_an_optimizer_in_backward_is_heard_there(heard: Heard) -> None:
    """What switches the profiler waits for the end of the pass."""
    x = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([x], lr=0.1)
    x.register_post_accumulate_grad_hook(lambda _: optimizer.step())
    x.sum().backward()
    optimizer.step()

    assert ["before", "inside", "backward", "before", "after"] == heard.said


def test_the_hooks_come_off_where_none_of_them_runs() -> None:
    """One that leaves within a hook takes nothing away from under torch; the next pass does."""

    class Leaves(Heard):
        def after_optimizer(self, optimizer: Any) -> None:
            leave(self)

    before = counts()
    listen(Leaves())
    x = torch.ones(2, requires_grad=True)
    torch.optim.SGD([x], lr=0.1).step()
    assert counts() != before
    x.sum().backward()
    assert counts() == before


def test_a_process_group_ends_with_gloo_at_rest_also_after_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise torch may wait for gloo's threads with the lock that they need."""
    listener = Heard()
    listen(listener)
    leave(listener, at_once=True)
    waits: list[GlooThreads] = []
    monkeypatch.setattr(GlooThreads, "wait_until_idle", lambda threads, longest_s: waits.append(threads))
    dist.init_process_group(
        "gloo",
        store=dist.HashStore(),  # type: ignore[attr-defined]
        rank=0,
        world_size=1,
    )
    dist.destroy_process_group()

    assert 1 == len(waits)


@pytest.mark.slow
def test_a_compiled_optimizer_steps_as_without_hooks(
    recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is heard, its graph is still compiled, torch warns of nothing more, and the parameters are equal."""
    import torch._dynamo

    def trained() -> Any:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        parameter = torch.ones(4, 4, requires_grad=True)
        optimizer = torch.optim.AdamW([parameter])
        step = torch.compile(optimizer.step, backend="eager")
        for _ in range(3):
            (parameter**2).sum().backward()  # type: ignore[no-untyped-call]
            step()
        return parameter.detach()

    plain = trained()
    recwarn.clear()
    logged = list[logging.LogRecord]()
    monkeypatch.setattr(logging.Logger, "callHandlers", lambda logger, entry: logged.append(entry))
    heard = Heard()
    listen(heard)
    try:
        with_hooks = trained()
    finally:
        leave(heard, at_once=True)

    assert ["backward", "before", "after"] * 3 == heard.said
    assert torch._dynamo.utils.counters["frames"]["ok"] > 0
    assert torch.equal(plain, with_hooks)
    assert [] == [str(warning.message) for warning in recwarn]
    assert [] == [entry.getMessage() for entry in logged if entry.levelno >= logging.WARNING]


def test_a_loop_that_steps_in_a_gradients_hook_is_recorded(tmp_path: Path) -> None:
    """record() inside of such a hook waits, too; torch would crash."""
    x = torch.ones(2, requires_grad=True)
    with record(tmp_path / "run", steps=2, warmup=2) as recording:
        x.register_post_accumulate_grad_hook(lambda _: recording.step())
        for _ in range(6):
            (x * x).sum().backward()

    (rank,) = json.loads((tmp_path / "run" / "run.json").read_text())["ranks"]
    assert 2 == rank["recorded_steps"]


COUNTS = """
import torch.nn.modules.module as modules
import torch.optim.optimizer as optimizers
hooks = (optimizers._global_optimizer_pre_hooks, optimizers._global_optimizer_post_hooks)
hooks += (modules._global_forward_hooks, modules._global_forward_pre_hooks)
functions = (torch.autograd._engine_run_backward, torch.nn.Module.eval)
print([len(each) for each in hooks], [function.__code__.co_filename for function in functions])
"""


@pytest.mark.spawn
def test_no_hook_is_left_after_the_window(tmp_path: Path) -> None:
    """Once all is recorded and measured, torch is as it was, although the training goes on."""
    text = script("accumulation and evaluation").replace("range(12)", "range(40)") + COUNTS
    plain, recorded = ends(tmp_path, [{"script": text, "how": how} for how in ("plain", "rank")])

    assert recorded.recorded
    assert plain.training == recorded.training


def test_nothing_is_left_by_the_tests_above() -> None:
    """They take off what they add."""
    assert (PLAIN, []) == (counts(), hooks._listeners)
