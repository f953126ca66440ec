"""Count the steps of a script from its optimizer's steps, which torch's public optimizer hook reports.

A step ends when the optimizer that made the very first step makes its next one; :mod:`.counted_optimizer` says when
another takes its place. So several optimizers in one loop count once; an optimizer that steps k times in a pass counts
k steps; and a pass whose step a GradScaler skips counts with the next. Where that does not fit, the script calls
``dptrace.record.step()``.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.profiler import record_function

from dptrace.errors import RecordingError
from dptrace.record import messages, script_profiler
from dptrace.record.failures import answer_launcher
from dptrace.record.messages import LauncherSettings
from dptrace.record.processes import ignore_termination
from dptrace.record.recording import Recording, latest, record
from dptrace.record.script.profiler_steps import ScriptProfilerSteps

# Mark evaluation between the steps of a script, so that it does not count as forward of the next step.
#
# Evaluation begins where the script calls ``eval()`` on a module that was training. From then until that module trains
# again, each outermost call of a module in eval mode without gradients is marked. While the script trains, this costs
# nothing: the hooks are there only during evaluation that is recorded, and on no module itself, which a script may copy
# or save. A model that never trained, such as the teacher in a distillation, is part of the step and gets no mark.


EVALUATION = "dptrace::evaluation"
"""The mark; dptrace.timeline.steps reads it."""


class EvaluationMarks:
    """Marks the calls of modules that a script evaluates, between :meth:`start` and :meth:`stop`."""

    def __init__(self) -> None:
        self._original_eval: Any = None
        self._evaluated: weakref.ref[nn.Module] | None = None
        """The module that the script has put into eval mode last."""
        self._handles: list[Any] = []
        self._call: tuple[weakref.ref[nn.Module], int, record_function] | None = None
        """The marked call that runs now: its module, thread and mark."""

    def start(self) -> None:
        """Follow the script's calls of ``eval()``."""
        if self._original_eval is not None:
            return
        self._original_eval = original = nn.Module.eval
        marks = self

        def evaluate(self: nn.Module) -> nn.Module:
            # Without a profiler that records, a mark is only a cost; recording begins and ends between evaluations.
            if torch.autograd.profiler._is_profiler_enabled and _trains(self):
                marks._begin(self)
            return original(self)

        evaluate.__doc__ = original.__doc__
        nn.Module.eval = evaluate  # type: ignore[method-assign,assignment]

    def stop(self) -> None:
        """Follow them no longer."""
        if self._original_eval is not None:
            nn.Module.eval = self._original_eval  # type: ignore[method-assign]
            self._original_eval = None
        self._remove_hooks()

    def _begin(self, module: nn.Module) -> None:
        self._evaluated = weakref.ref(module)
        if not self._handles:
            self._handles = [
                register_module_forward_pre_hook(self._before_call),
                register_module_forward_hook(self._after_call, always_call=True),
            ]

    def _remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _before_call(self, module: nn.Module, arguments: Any) -> None:
        if torch.compiler.is_compiling() or self._call is not None:
            return
        evaluated = None if self._evaluated is None else self._evaluated()
        if evaluated is None or _trains(evaluated):
            self._remove_hooks()  # the script trains again
        elif not module.training and not torch.is_grad_enabled():
            mark = record_function(EVALUATION)
            self._call = weakref.ref(module), threading.get_ident(), mark
            mark.__enter__()

    def _after_call(self, module: nn.Module, arguments: Any, output: Any) -> None:
        if torch.compiler.is_compiling() or self._call is None:
            return
        called, thread, mark = self._call
        if called() is module and thread == threading.get_ident():
            self._call = None
            mark.__exit__(None, None, None)


def _trains(module: nn.Module) -> bool:
    """Return whether it or a part of it is in training mode.

    Lightning puts the module in DistributedDataParallel back into training mode, but not the wrapper itself.
    """
    return any(part.training for part in module.modules())


# Mark the closure that a script passes to ``Optimizer.step``: its forward and backward are not the optimizer's work.
#
# Lightning passes the whole pass of the loop as such a closure, L-BFGS calls one several times.


CLOSURE = "dptrace::closure"
"""The mark around each call of a closure; dptrace.timeline.steps reads it."""


def mark_closure(
    optimizer: Optimizer, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Replace the closure by one that is marked, as a hook before an optimizer's step; None where nothing changes.

    Without a profiler that records, a mark is only a cost.
    """
    if not torch.autograd.profiler._is_profiler_enabled:
        return None
    if callable(keywords.get("closure")):
        return arguments, {**keywords, "closure": _marked(keywords["closure"])}
    # The optimizer itself comes first.
    if len(arguments) > 1 and callable(arguments[1]):
        return (arguments[0], _marked(arguments[1]), *arguments[2:]), keywords
    return None


def _marked(closure: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(closure, updated=())
    def marked(*arguments: Any, **keywords: Any) -> Any:
        with record_function(CLOSURE):
            return closure(*arguments, **keywords)

    return marked


# Choose the optimizer whose steps are the steps of a training.
#
# It is the one that made the very first step, so that several optimizers in one loop count once. It hands over
#
# - to any other, once it is gone: a script may make a new optimizer in each epoch, or in each pass;
# - to a new one that trains a parameter of it, because the old one may linger, held by its scheduler;
# - to one that has made many steps since its last one: the script has gone on to another model.


_GIVEN_UP_AFTER = 20
"""Steps of another optimizer after which the counted one counts as given up. A GAN's critic makes fewer in a pass."""


class CountedOptimizer:
    """Decides which of the steps of all optimizers end a step of the training."""

    def __init__(self, first: Optimizer) -> None:
        self.name = type(first).__name__
        self.uneven = False
        """Whether optimizers step at different rates, so that a step of one may not be a pass of the loop."""
        self._counted = weakref.ref(first)
        self._known: weakref.WeakSet[Optimizer] = weakref.WeakSet([first])
        self._others: Counter[int] = Counter()
        """Steps of each other optimizer, by its id, since the last step of the counted one."""
        self._own = 0
        """Steps of the counted optimizer since another one stepped."""

    def ends_step(self, optimizer: Optimizer) -> bool:
        """Return whether this step of an optimizer ends a step of the training."""
        counted = self._counted()
        if optimizer is not counted and (counted is None or self._replaces(optimizer, counted)):
            self._counted, self.name = weakref.ref(optimizer), type(optimizer).__name__
            counted = optimizer
            self._own = 0
        known = optimizer in self._known
        self._known.add(optimizer)
        if optimizer is counted:
            self._own += 1
            self._others.clear()
            return True
        self._others[id(optimizer)] += 1
        self.uneven |= known and (self._own > 1 or self._others[id(optimizer)] > 1)
        self._own = 0
        return False

    def _replaces(self, optimizer: Optimizer, counted: Optimizer) -> bool:
        if self._others[id(optimizer)] >= _GIVEN_UP_AFTER:
            return True
        return optimizer not in self._known and not _parameters(optimizer).isdisjoint(_parameters(counted))


def _parameters(optimizer: Optimizer) -> set[int]:
    return {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}


STEP_ADVICE = "call dptrace.record.step() at the end of each pass of your loop"
_EXPLICIT = "dptrace.record.script.explicit_step"
"""The module of ``dptrace.record.step``, which is imported once a script asks for that function."""

_running: OptimizerSteps | None = None


def current_counter() -> OptimizerSteps | None:
    """Return the counter of this process; None in one that ``dptrace record`` runs no script in."""
    return _running


class OptimizerSteps:
    """Starts a recording at the first optimizer step and ends one of its steps at each further one.

    Args:
        adopted: keeps a trace of the script's own profiler, for a script that leaves no room for dptrace's.
    """

    def __init__(self, adopted: ScriptProfilerSteps | None = None) -> None:
        self.seen = self._refused = False
        self.process = os.getpid()
        """The id of this process: a child that the script forks inherits the hook but must not touch the recording."""
        self._recording: Recording | None = None
        self._counted: CountedOptimizer | None = None
        self._first: weakref.ref[Optimizer] | None = None
        self._adopted = adopted
        self._explicit = False
        """Whether the script says itself where its steps end."""
        self._evaluation = EvaluationMarks()

    def install(self) -> None:
        """Follow the steps of all optimizers of this process, and make this its counter."""
        global _running
        _running = self
        register_optimizer_step_pre_hook(mark_closure)
        register_optimizer_step_post_hook(self)

    def __call__(self, optimizer: Optimizer, arguments: Any, keywords: Any) -> None:
        """Count a step of an optimizer, as a hook."""
        if self.forked or self._refused:
            return
        self.seen = True
        if latest() is not None and latest() is not self._recording:
            return  # the script calls record() itself
        self._explicit = self._explicit or _EXPLICIT in sys.modules
        if self._first is None:
            self._first = weakref.ref(optimizer)
        if self._explicit:
            return
        if self._recording is None or self._counted is None:
            self._counted = CountedOptimizer(optimizer)
            self._begin()
        elif self._counted.ends_step(optimizer):
            self._note_uneven_steps(self._recording, self._counted)
            self._recording.step()

    def end_step(self, loss: torch.Tensor | float | None = None) -> None:
        """End a step because the script says so; from now on, optimizers do not count."""
        if self.forked or self._refused:
            return
        self.seen = self._explicit = True
        recording = latest()
        if recording is not None:
            recording.step(loss)
        else:
            self._begin()

    def _begin(self) -> None:
        if self._refused:
            return
        try:
            self._start()
        except Exception as error:  # must not end the training
            self._refused = True
            text = f"The recording could not begin: {messages.error_text(error)}"
            messages.report_failure(RecordingError(text), of_recorder=True)

    def _start(self) -> None:
        self._recording = record()
        self._recording.adopted = self._adopted
        optimizer = None if self._first is None else self._first()
        if optimizer is not None:
            if self._adopted is not None:
                self._adopted(optimizer, (), {})
            self._recording.set_parameters(p for group in optimizer.param_groups for p in group["params"])
        self._recording.__enter__()
        self._evaluation.start()

    @staticmethod
    def _note_uneven_steps(recording: Recording, counted: CountedOptimizer) -> None:
        note = (
            f"The script's optimizers step at different rates; each step of {counted.name} counts as a step of the "
            f"training. If it is not, {STEP_ADVICE}."
        )
        if counted.uneven and note not in recording.notes:
            recording.notes.append(note)

    @property
    def forked(self) -> bool:
        """Whether this process is a child that the script forked."""
        return os.getpid() != self.process

    def close(self, error: BaseException | None) -> None:
        """End the recording."""
        if error is not None:
            # First: closing takes time, in which peers fail because of this failure.
            messages.report_failure(error)
        self._evaluation.stop()
        if self._recording is not None:
            self._recording.close(error)
        if self._adopted is not None:
            self._adopted.forget()

    @property
    def writing(self) -> bool:
        """Whether this process writes a trace."""
        return self._recording is not None and bool(self._recording.output.writing)


# Prepare a rank of a script to be recorded: what ends its steps, what the launcher may ask it, and how it ends.


_POLL_S = 0.05

Steps = OptimizerSteps | ScriptProfilerSteps
"""What records a script: dptrace's profiler by its optimizer's steps, or the script's own profiler."""


def watch_steps() -> Steps:
    """Prepare this process, which is a rank, to be recorded; call this before the program runs."""
    answer_launcher()
    script_profiler.install()  # before the script can prepare a profiler of its own
    settings = LauncherSettings.from_environment()
    adopted = ScriptProfilerSteps(settings) if settings is not None else None
    if settings is not None and adopted is not None and settings.use_script_profiler:
        register_optimizer_step_pre_hook(mark_closure)
        register_optimizer_step_post_hook(adopted)
        steps: Steps = adopted
    else:
        steps = OptimizerSteps(adopted)
        steps.install()
    _write_before_exit(steps)
    return steps


def _write_before_exit(steps: Steps) -> None:
    """Let a script that calls os._exit() write first: it skips all that Python does at exit."""
    leave, process = os._exit, os.getpid()

    def write_and_leave(status: int) -> NoReturn:
        with suppress(BaseException):
            if os.getpid() == process:
                ignore_termination()
                # A profiler can only be stopped on its own thread; another one may end the process because that hangs.
                if threading.current_thread() is threading.main_thread():
                    steps.close(SystemExit(status) if status else None)
                while steps.writing:
                    time.sleep(_POLL_S)
        leave(status)

    os._exit = write_and_leave
