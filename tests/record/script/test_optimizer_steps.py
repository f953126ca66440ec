"""Counting the steps of a script that was not changed."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dptrace.record.messages import LauncherSettings

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("default", "ignore:Using .torch.compile")  # torch's own


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Assign a launcher's folder to this process, for one recorded step after two of warm-up."""
    monkeypatch.delitem(sys.modules, "dptrace.record.script.explicit_step", raising=False)
    assignment = LauncherSettings(str(tmp_path), "runs/x", steps=1, warmup=2, wait=0)
    for name, value in assignment.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("dptrace.record.recording._latest", None)
    return tmp_path


def _optimizers(count: int) -> list[Any]:
    return [torch.optim.SGD([torch.ones(3, requires_grad=True)], lr=0.1) for _ in range(count)]


def _piece(folder: Path) -> dict[str, object]:
    piece: dict[str, object] = json.loads((folder / "window1" / "rank0.piece.json").read_text())
    return piece


def test_a_script_that_records_itself_is_left_to_it(folder: Path) -> None:
    """Optimizer steps inside a script's own record() are not counted a second time."""
    from dptrace.record import record
    from dptrace.record.script.optimizer_steps import OptimizerSteps

    steps, (optimizer,) = OptimizerSteps(), _optimizers(1)
    with record("elsewhere", steps=7, warmup=5) as recording:
        for _ in range(2):
            steps.after_optimizer(optimizer)
        assert 0 == recording.steps_done
        assert 3 == recording.total_steps
        for _ in range(3):
            recording.step()
    steps.after_optimizer(optimizer)
    steps.close(None)

    assert (1, []) == (_piece(folder)["recorded_steps"], _piece(folder)["notes"])


# The mark around an optimizer's closure.


def _sgd(parameter: Any) -> Any:
    return torch.optim.SGD([parameter], lr=0.1)


def _lbfgs(parameter: Any) -> Any:
    return torch.optim.LBFGS([parameter], max_iter=2)


@pytest.mark.parametrize("optimizer_of", [_sgd, _lbfgs])
@pytest.mark.parametrize("keyword", [True, False])
def test_each_call_of_a_closure_is_marked_and_returns_its_loss(
    optimizer_of: Callable[[Any], Any], keyword: bool
) -> None:
    """Positional or by name, called once or several times; the step returns what the closure did."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    from dptrace.record.marks import CLOSURE, mark_closure

    parameter, calls = torch.full((3,), 2.0, requires_grad=True), []
    optimizer = optimizer_of(parameter)

    def closure() -> Any:
        calls.append(1)
        optimizer.zero_grad()
        loss = (parameter**2).sum()
        loss.backward()
        return loss

    handle = register_optimizer_step_pre_hook(mark_closure)
    try:
        with torch.profiler.profile() as profile:
            loss = optimizer.step(closure=closure) if keyword else optimizer.step(closure)
        unprofiled = len(calls)
        optimizer.step(closure)
    finally:
        handle.remove()

    assert 12.0 == float(loss.detach())
    assert unprofiled == sum(event.name == CLOSURE for event in profile.events())
    assert len(calls) > unprofiled > 0


def test_a_step_without_a_closure_stays_as_it_is() -> None:
    """The hook returns nothing, so torch passes on what it had."""
    from dptrace.record.marks import mark_closure

    optimizer = _sgd(torch.ones(3, requires_grad=True))
    with torch.profiler.profile():
        assert mark_closure(optimizer, (optimizer,), {}) is None
        assert mark_closure(optimizer, (optimizer, None), {"closure": None}) is None


# Which optimizer's steps are the steps of a training.


def _parameter() -> Any:
    return torch.ones(3, requires_grad=True)


def _counted_optimizer_sgd(*parameters: Any) -> Any:
    return torch.optim.SGD(parameters or [_parameter()], lr=0.1)


def _counted(first: Any) -> Any:
    from dptrace.record.steps import CountedOptimizer

    return CountedOptimizer(first)


@pytest.mark.parametrize("order", ["cccccg", "gccccc"])
def test_optimizers_with_different_rates_are_reported(order: str) -> None:
    """Five steps of the critic for one of the generator: the first of them counts, and the counter knows its doubt."""
    by_name = {"c": _counted_optimizer_sgd(), "g": _counted_optimizer_sgd()}
    counted = _counted(by_name[order[0]])
    ends = [counted.ends_step(by_name[name]) for name in (order * 4)[1:]]

    assert 4 * order.count(order[0]) - 1 == sum(ends)
    assert counted.uneven


def test_two_optimizers_that_share_a_parameter_count_once() -> None:
    """An encoder in two losses, each with its optimizer: after the first pass, one of them ends a step."""
    shared = _parameter()
    first, second = _counted_optimizer_sgd(shared, _parameter()), _counted_optimizer_sgd(shared, _parameter())
    counted = _counted(first)
    ends = [counted.ends_step(optimizer) for optimizer in [second] + [first, second] * 4]

    assert 4 == sum(ends[1:])


def test_an_optimizer_that_stops_hands_over_in_time() -> None:
    """A second model is trained after the first, and both are kept."""
    first, second = _counted_optimizer_sgd(), _counted_optimizer_sgd()
    counted = _counted(first)
    ends = [counted.ends_step(optimizer) for optimizer in [first] * 5 + [second] * 40]

    assert [True] * 5 == ends[:5]
    assert [True] * 15 == ends[-15:]


# The mark around evaluation between a script's steps.


@pytest.fixture
def marks() -> Iterator[Any]:
    """Follow the calls of eval() during a test."""
    from dptrace.record.marks import EvaluationMarks

    marks = EvaluationMarks()
    marks.start()
    yield marks
    marks.stop()


def _model() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1))


def _marked(profile: Any) -> int:
    return sum(event.name == "dptrace::evaluation" for event in profile.events())


def _hooks() -> int:
    return len(torch.nn.modules.module._global_forward_pre_hooks)


def test_only_the_outermost_call_without_gradients_is_marked(marks: Any) -> None:
    """Training, and a call in eval mode with gradients, are not evaluation; a later evaluation is again."""
    model, data = _model(), torch.ones(2, 4)
    with torch.profiler.profile() as profile:
        for _ in range(2):
            model.train()
            model(data).sum().backward()
            model.eval()
            with torch.no_grad():
                model(data)
                model[0](data)
            model(data).sum().backward()
    assert 4 == _marked(profile)


def test_hooks_are_there_during_evaluation_only(marks: Any) -> None:
    """The first call after train() removes them; a model that is copied or saved in between takes none with it."""
    import copy

    model, data = _model(), torch.ones(2, 4)
    assert 0 == _hooks()
    with torch.profiler.profile():
        model.eval()
        assert 1 == _hooks()
        assert not copy.deepcopy(model)._forward_pre_hooks
        model.train()
        model(data)
    assert 0 == _hooks()


def test_a_wrapper_that_stays_in_eval_mode_is_evaluated_if_what_it_wraps_trained(marks: Any) -> None:
    """Lightning sets only the module in DistributedDataParallel back, so the wrapper stays in eval mode."""
    model, data = _model(), torch.ones(2, 4)
    wrapper = torch.nn.Sequential(model).eval()
    model.train()
    with torch.profiler.profile() as profile:
        wrapper(data).sum().backward()
        wrapper.eval()
        with torch.no_grad():
            wrapper(data)
        model.train()
        wrapper(data).sum().backward()
    assert 1 == _marked(profile)
    assert 0 == _hooks()


def test_a_teacher_that_never_trained_is_part_of_the_step(marks: Any) -> None:
    """Its forward is in eval mode without gradients in each step, but it is no evaluation of what is trained."""
    teacher, student, data = _model().eval(), _model(), torch.ones(2, 4)
    with torch.profiler.profile() as profile:
        for _ in range(3):
            student.eval()
            student.train()
            teacher.eval()
            with torch.no_grad():
                teacher(data)
            student(data).sum().backward()

    assert 0 == _marked(profile)


def test_without_a_profiler_nothing_is_hooked_and_the_end_restores_all() -> None:
    """eval() is torch's own again, and a mark costs nothing where nothing is recorded."""
    from dptrace.record.marks import EvaluationMarks

    original = torch.nn.Module.eval
    marks = EvaluationMarks()
    marks.start()
    marks.start()
    model = _model()
    assert model.eval() is model
    assert (False, 0) == (model.training, _hooks())
    with torch.profiler.profile():
        model.train().eval()
        marks.stop()

    assert (original, 0) == (torch.nn.Module.eval, _hooks())


def test_a_forward_that_fails_ends_its_mark(marks: Any) -> None:
    """The next evaluation is marked as well."""
    model = _model()
    with torch.profiler.profile() as profile:
        model.eval()
        with torch.no_grad():
            with pytest.raises(RuntimeError):
                model(torch.ones(2, 3))
            model(torch.ones(2, 4))

    assert 2 == _marked(profile)


@pytest.fixture
def _forgets_compiled() -> Iterator[None]:
    """Leave the process as one that compiled nothing, which other tests rely on."""
    yield
    torch.compiler.reset()
    importlib.import_module("torch._dynamo.utils").counters.clear()


@pytest.mark.heavy
@pytest.mark.usefixtures("_forgets_compiled")
def test_a_compiled_model_is_marked_around_its_compiled_code(marks: Any) -> None:
    """The compiler sees no mark, and the model computes the same."""
    model, data = _model(), torch.ones(2, 4)
    with torch.no_grad():
        expected = model(data)
    compiled = torch.compile(model, backend="eager")
    compiled(data).sum().backward()
    with torch.profiler.profile() as profile:
        compiled.eval()
        with torch.no_grad():
            assert torch.equal(expected, compiled(data))
        compiled.train()
        compiled(data).sum().backward()

    assert 1 == _marked(profile)
    assert 0 == _hooks()
