"""The mark around evaluation between a script's steps."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("default")  # torch's own, which differ from version to version


@pytest.fixture
def marks() -> Iterator[Any]:
    """Follow the calls of eval() during a test."""
    from dptrace.record.script.evaluation import EvaluationMarks

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
    from dptrace.record.script.evaluation import EvaluationMarks

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
