"""Keep dptrace's profiler and the script's own apart: torch has one profiler session per process.

A second session cancels the first, of which the first one's Python object learns nothing: its trace is empty, or the
process crashes when it stops. No flag of torch shows a prepared session (warm-up), so :func:`install` wraps the methods
that every profiler of torch goes through. The script's own profiler goes first.
"""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import torch
from torch.autograd import profiler as autograd_profiler
from torch.autograd.profiler_util import EventList
from torch.profiler import profile, record_function

from dptrace.errors import RecordingError

# An empty result for a profiler of the script that could not run next to dptrace's, so that its methods still work.


def fill_with_nothing(profiler: Any) -> None:
    """Set the result of an empty session on a ``torch.autograd.profiler.profile`` that was not started."""

    def save(path: str) -> None:
        Path(path).write_text('{"schemaVersion": 1, "traceEvents": []}\n', encoding="utf-8")

    # In place of torch's _ProfilerResult.
    profiler.kineto_results = SimpleNamespace(
        trace_start_ns=lambda: 0, events=list, experimental_event_tree=list, trace_activities=list, save=save
    )
    if isinstance(getattr(type(profiler), "function_events", None), property):
        profiler._function_events = None  # torch derives the events from the result when they are asked for
    else:
        profiler.function_events = EventList([], use_device=None)
        profiler.function_events._build_tree()


_WAITED = "The recording waited for the script's own profiler to end."
_MADE_WAY = "The script started its own profiler, so dptrace's ended before it."
_MUTED = "The script started its own profiler on another thread during the recording; that profiler's trace is empty."
_UNKNOWN = "This version of torch is unknown to dptrace: a profiler that the script starts may break the recording."
_DAEMON = (
    "KINETO_USE_DAEMON is set: dptrace does not see a trace that dynolog requests, and one that is being recorded when "
    "dptrace's profiler starts is cancelled."
)

_guard: ProfilerGuard | None = None


def install() -> ProfilerGuard:
    """Watch torch's profilers from now on, and return the guard of this process. Calling it again changes nothing."""
    global _guard
    if _guard is None:
        _guard = ProfilerGuard()
        _wrap_profilers(_guard)
        os.register_at_fork(after_in_child=_guard.forked)
    return _guard


@dataclass(slots=True)
class _Session:
    """Dptrace's own session, from its preparation to its end."""

    profiler: Any
    thread: int
    started: bool = False


class ProfilerGuard:
    """Which profilers of this process are prepared or recording: dptrace's own, and the script's."""

    def __init__(self) -> None:
        self.on_foreign_start: Callable[[], None] | None = None
        """Called on the recording thread before the script's profiler is prepared while dptrace's is open; ends
        dptrace's own, inside :meth:`ours`."""
        self.on_foreign_open: Callable[[], None] | None = None
        """Called before the script prepares any profiler, on the thread that does."""
        self.foreign_seen = False
        """Whether the script has prepared a profiler of its own."""
        self._lock = threading.Lock()
        self._depth = threading.local()
        self._own: _Session | None = None
        self._foreign: WeakSet[Any] = WeakSet()
        self._muted: WeakSet[Any] = WeakSet()
        self._sentences: dict[str, None] = {}
        self._lasting: list[str] = []
        if os.environ.get("KINETO_USE_DAEMON"):
            self.note_always(_DAEMON)

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Mark the calls of this thread into torch's profiler as dptrace's own."""
        self._depth.value = getattr(self._depth, "value", 0) + 1
        try:
            yield
        finally:
            self._depth.value -= 1

    @property
    def inside_ours(self) -> bool:
        """Whether this thread is inside :meth:`ours`."""
        return getattr(self._depth, "value", 0) > 0

    @property
    def is_open(self) -> bool:
        """Whether dptrace's own profiler is prepared or recording."""
        return self._own is not None

    @property
    def is_open_elsewhere(self) -> bool:
        """Whether dptrace's own profiler is prepared or recording on another thread."""
        return self._own is not None and self._own.thread != threading.get_ident()

    @property
    def foreign_open(self) -> bool:
        """Whether a profiler of the script is prepared or recording."""
        return len(self._foreign) > 0

    def foreign_busy(self) -> bool:
        """Return whether a profiler of the script is prepared or recording, so that dptrace's must not start."""
        busy = len(self._foreign) > 0 or (self._own is None and _unknown_session())
        if busy:
            self.note(_WAITED)
        return busy

    def sentences(self) -> list[str]:
        """Return what happened since the last call, for the notes in run.json, and what holds for the whole process."""
        happened, self._sentences = self._sentences, {}
        return [*self._lasting, *happened]

    def note(self, sentence: str) -> None:
        """Add a sentence to :meth:`sentences`, once."""
        self._sentences[sentence] = None

    def note_always(self, sentence: str) -> None:
        """Add a sentence that holds for the whole process."""
        self._lasting.append(sentence)

    def forked(self) -> None:
        """Mute, in a child that the script forked, each profiler: the child inherits dptrace's open session."""
        self._lock = threading.Lock()
        self._foreign, self.on_foreign_start = WeakSet(), None
        if self._own is not None:
            self._own.thread = 0  # so that no thread of the child may end it

    def open_own(self, profiler: Any) -> None:
        """Enter dptrace's own session, in place of one that an error has left open.

        Raises:
            RecordingError: the script's profiler is active.
        """
        if not self.is_open_elsewhere:
            self._end_session()
        with self._lock:
            if len(self._foreign):
                raise RecordingError("The script's own profiler is active, so dptrace's did not start.")
            self._own = _Session(profiler, threading.get_ident())

    def own_started(self, profiler: Any) -> None:
        """Note that dptrace's session records."""
        if self._own is not None and self._own.profiler is profiler:
            self._own.started = True

    def closed(self, profiler: Any) -> None:
        """Forget a session that has ended or could not begin."""
        with self._lock:
            self._foreign.discard(profiler)
            if self._own is not None and self._own.profiler is profiler:
                self._own = None

    def is_muted(self, profiler: Any) -> bool:
        """Return whether a profiler of the script must not touch torch's session."""
        return profiler in self._muted

    def open_foreign(self, profiler: Any) -> bool:
        """Enter a session of the script, after ending dptrace's own; return False if it is muted instead."""
        self.foreign_seen = True
        if self.on_foreign_open is not None:
            self.on_foreign_open()
        with self._lock:
            self._muted.discard(profiler)
            if self.is_open_elsewhere:
                # Ending a session on another thread than the one that started it crashes.
                self._muted.add(profiler)
                self.note(_MUTED)
                return False
        self.end_own()
        with self._lock:
            self._foreign.add(profiler)
        return True

    def end_own(self) -> None:
        """End dptrace's own session, if it is open, on its thread: by :attr:`on_foreign_start`, else directly."""
        with suppress(Exception):  # whatever fails here must not end the script
            if self._own is not None and self.on_foreign_start is not None:
                self.on_foreign_start()
        if self._own is not None:
            self.note(_MADE_WAY)
            self._end_session()

    def _end_session(self) -> None:
        """End dptrace's session whatever its state: torch 2.4 cannot prepare another one next to it."""
        if self._own is None:
            return
        session, self._own = self._own, None
        with suppress(Exception), self.ours():
            if not session.started:  # torch cannot end a session that has not started
                session.profiler._start_trace()
            session.profiler.__exit__(None, None, None)


def _unknown_session() -> bool:
    """Return whether a profiler is recording that began before install() or not through a wrapped method."""
    enabled = getattr(torch._C._autograd, "_profiler_enabled", None)  # this thread's only
    return bool(enabled is not None and enabled()) or bool(getattr(autograd_profiler, "_is_profiler_enabled", False))


def _wrap_profilers(guard: ProfilerGuard) -> None:
    """Wrap what torch.profiler and torch.autograd.profiler share, and the older profilers."""
    own = autograd_profiler.profile
    names = {"_prepare_trace": _prepare, "_start_trace": _start, "__exit__": _exit}
    if not all(hasattr(own, name) for name in names):
        guard.note_always(_UNKNOWN)
        return
    for name, wrapper in names.items():
        _wrap(own, name, wrapper, guard)
    for name in ("start", "step"):
        _wrap(profile, name, _without_mark, guard)
    kinds = [getattr(autograd_profiler, name, None) for name in ("emit_nvtx", "emit_itt")]
    with suppress(ImportError):
        legacy = importlib.import_module("torch.autograd.profiler_legacy")
        kinds.append(getattr(legacy, "profile", None))
    for kind in filter(None, kinds):
        _wrap(kind, "__enter__", _enter_on_thread, guard)
        _wrap(kind, "__exit__", _exit, guard)


def _wrap(kind: type, name: str, wrapper: Callable[..., Any], guard: ProfilerGuard) -> None:
    original = getattr(kind, name)

    @wraps(original)
    def wrapped(self: Any, *arguments: Any, **keywords: Any) -> Any:
        return wrapper(guard, lambda: original(self, *arguments, **keywords), self)

    setattr(kind, name, wrapped)


def _forget_on_error(guard: ProfilerGuard, call: Callable[[], Any], profiler: Any) -> Any:
    try:
        return call()
    except BaseException:
        guard.closed(profiler)
        raise


def _prepare(guard: ProfilerGuard, call: Callable[[], Any], profiler: Any) -> Any:
    if guard.inside_ours:
        guard.open_own(profiler)
    elif not guard.open_foreign(profiler):
        return None
    return _forget_on_error(guard, call, profiler)


def _start(guard: ProfilerGuard, call: Callable[[], Any], profiler: Any) -> Any:
    if guard.is_muted(profiler):
        return None
    result = _forget_on_error(guard, call, profiler)
    guard.own_started(profiler)
    return result


def _exit(guard: ProfilerGuard, call: Callable[[], Any], profiler: Any) -> Any:
    if guard.is_muted(profiler):
        fill_with_nothing(profiler)
        return None
    try:
        return call()
    finally:
        guard.closed(profiler)


def _enter_on_thread(guard: ProfilerGuard, call: Callable[[], Any], profiler: Any) -> Any:
    """Enter emit_nvtx and the like, whose sessions belong to one thread and exclude only others of that thread."""
    if not getattr(profiler, "enabled", True) or guard.is_open_elsewhere:
        return call()
    guard.open_foreign(profiler)
    return _forget_on_error(guard, call, profiler)


def _without_mark(guard: ProfilerGuard, call: Callable[[], Any], profiler: Any) -> Any:
    """Run ``start`` or ``step`` of the script's profiler without its ProfilerStep mark while dptrace records.

    A profiler marks its steps also while it waits. In dptrace's trace its marks would be taken for steps.
    """
    if not guard.is_open or guard.inside_ours or not getattr(profiler, "record_steps", False):
        return call()
    if (mark := getattr(profiler, "step_rec_fn", None)) is not None:
        mark.__exit__(None, None, None)
    profiler.step_rec_fn, profiler.record_steps = None, False
    try:
        return call()
    finally:
        profiler.record_steps = True
        if not guard.is_open:  # the call has ended dptrace's session, and may have started the script's
            profiler.step_rec_fn = record_function(f"ProfilerStep#{profiler.step_num}")
            profiler.step_rec_fn.__enter__()
