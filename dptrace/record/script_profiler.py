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
from dptrace.record.safety import harmless

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
        _guard.wrap_profilers()
        os.register_at_fork(after_in_child=_guard.forked)
    return _guard


class ProfilerGuard:
    """Which profilers of this process are prepared or recording: dptrace's own, and the script's."""

    def __init__(self) -> None:
        self.on_foreign_start: Callable[[], None] | None = None
        """Called before the script's profiler is prepared, unless dptrace's is open on another thread; ends dptrace's,
        if it is open, inside :meth:`ours`."""
        self.foreign_seen = False
        """Whether the script has prepared a profiler of its own."""
        self._lock = threading.Lock()
        self._depth = threading.local()
        self._own: Any = None
        """Dptrace's own profiler, from its preparation to its end."""
        self._own_thread, self._own_started = 0, False
        self._foreign: WeakSet[Any] = WeakSet()
        self._muted: WeakSet[Any] = WeakSet()
        self._sentences: dict[str, None] = {}
        self._lasting = [_DAEMON] if os.environ.get("KINETO_USE_DAEMON") else []

    @contextmanager
    def ours(self) -> Iterator[None]:
        """Mark the calls of this thread into torch's profiler as dptrace's own."""
        self._depth.value = getattr(self._depth, "value", 0) + 1
        try:
            yield
        finally:
            self._depth.value -= 1

    @property
    def _inside_ours(self) -> bool:
        return getattr(self._depth, "value", 0) > 0

    @property
    def is_open(self) -> bool:
        """Whether dptrace's own profiler is prepared or recording."""
        return self._own is not None

    @property
    def _is_open_elsewhere(self) -> bool:
        """Whether dptrace's own profiler is prepared or recording on another thread."""
        return self._own is not None and self._own_thread != threading.get_ident()

    @property
    def foreign_open(self) -> bool:
        """Whether a profiler of the script is prepared or recording."""
        return len(self._foreign) > 0

    def foreign_busy(self) -> bool:
        """Return whether a profiler of the script is prepared or recording, so that dptrace's must not start."""
        busy = self.foreign_open or (self._own is None and _unknown_session())
        if busy:
            self._sentences[_WAITED] = None
        return busy

    def sentences(self) -> list[str]:
        """Return what happened since the last call, for the notes in run.json, and what holds for the whole process."""
        happened, self._sentences = self._sentences, {}
        return [*self._lasting, *happened]

    def forked(self) -> None:
        """Mute, in a child that the script forked, each profiler: the child inherits dptrace's open session."""
        self._lock = threading.Lock()
        self._foreign, self.on_foreign_start = WeakSet(), None
        self._own_thread = 0  # so that no thread of the child may end dptrace's

    def wrap_profilers(self) -> None:
        """Wrap what torch.profiler and torch.autograd.profiler share, and the older profilers."""
        own = autograd_profiler.profile
        wrappers = {"_prepare_trace": self._prepare, "_start_trace": self._start, "__exit__": self._exit}
        if not all(hasattr(own, name) for name in wrappers):
            self._lasting.append(_UNKNOWN)
            return
        for name, wrapper in wrappers.items():
            _wrap(own, name, wrapper)
        for name in ("start", "step"):
            _wrap(profile, name, self._without_mark)
        kinds = [getattr(autograd_profiler, name, None) for name in ("emit_nvtx", "emit_itt")]
        with suppress(ImportError):
            legacy = importlib.import_module("torch.autograd.profiler_legacy")
            kinds.append(getattr(legacy, "profile", None))
        for kind in filter(None, kinds):
            _wrap(kind, "__enter__", self._enter_on_thread)
            _wrap(kind, "__exit__", self._exit)

    def _prepare(self, call: Callable[[], Any], profiler: Any) -> Any:
        if self._inside_ours:
            self._open_own(profiler)
        elif (opened := self._open_foreign(profiler)) is False:
            return None
        elif opened is None:
            self._end_session()
        return self._call(call, profiler)

    def _start(self, call: Callable[[], Any], profiler: Any) -> Any:
        if profiler in self._muted:
            return None
        result = self._call(call, profiler)
        self._own_started |= self._own is profiler
        return result

    def _exit(self, call: Callable[[], Any], profiler: Any) -> Any:
        if profiler in self._muted:
            fill_with_nothing(profiler)  # of a profiler that was not started, torch has no result
            return None
        try:
            return call()
        finally:
            self._forget(profiler)

    def _enter_on_thread(self, call: Callable[[], Any], profiler: Any) -> Any:
        """Enter emit_nvtx and the like, whose sessions belong to one thread and exclude only others of that thread."""
        if not getattr(profiler, "enabled", True) or self._is_open_elsewhere:
            return call()
        self._open_foreign(profiler)
        return self._call(call, profiler)

    def _without_mark(self, call: Callable[[], Any], profiler: Any) -> Any:
        """Run ``start`` or ``step`` of the script's profiler without its ProfilerStep mark while dptrace records.

        A profiler marks its steps also while it waits. In dptrace's trace its marks would be taken for steps.
        """
        if not self.is_open or self._inside_ours or not getattr(profiler, "record_steps", False):
            return call()
        self._hide_mark(profiler)
        try:
            return call()
        finally:
            self._show_mark(profiler)

    @harmless("hiding the marks of the script's profiler")
    def _hide_mark(self, profiler: Any) -> None:
        if (mark := getattr(profiler, "step_rec_fn", None)) is not None:
            mark.__exit__(None, None, None)
        profiler.step_rec_fn, profiler.record_steps = None, False

    @harmless("hiding the marks of the script's profiler")
    def _show_mark(self, profiler: Any) -> None:
        profiler.record_steps = True
        if not self.is_open:  # the call has ended dptrace's session, and may have started the script's
            profiler.step_rec_fn = record_function(f"ProfilerStep#{profiler.step_num}")
            profiler.step_rec_fn.__enter__()

    def _call(self, call: Callable[[], Any], profiler: Any) -> Any:
        """Begin a session; forget it if that fails."""
        try:
            return call()
        except BaseException:
            self._forget(profiler)
            raise

    def _forget(self, profiler: Any) -> None:
        if self._own is profiler:
            self._own = None  # first: torch crashes if a session is ended twice
        self._close(profiler)

    @harmless("watching profilers", is_needed=True)
    def _close(self, profiler: Any) -> None:
        with self._lock:
            self._foreign.discard(profiler)

    def _open_own(self, profiler: Any) -> None:
        """Enter dptrace's own session, in place of one that an error has left open.

        Raises:
            RecordingError: the script's profiler is active.
        """
        if not self._is_open_elsewhere:
            self._end_session()
        with self._lock:
            if self.foreign_open:
                raise RecordingError("The script's own profiler is active, so dptrace's did not start.")
            self._own, self._own_thread, self._own_started = profiler, threading.get_ident(), False

    @harmless("making way for the script's profiler", is_needed=True)
    def _open_foreign(self, profiler: Any) -> bool | None:
        """Enter a session of the script, after ending dptrace's own; return False if it is muted instead.

        After an error, nothing is known, and None is returned.
        """
        self.foreign_seen = True
        with self._lock:
            self._muted.discard(profiler)
            if self._is_open_elsewhere:
                # Ending a session on another thread than the one that started it crashes.
                self._muted.add(profiler)
                self._sentences[_MUTED] = None
                return False
        with suppress(Exception):  # whatever fails here must not end the script
            if self.on_foreign_start is not None:
                self.on_foreign_start()
        if self._own is not None:
            self._sentences[_MADE_WAY] = None
            self._end_session()
        with self._lock:
            self._foreign.add(profiler)
        return True

    def _end_session(self) -> None:
        """End dptrace's session whatever its state: torch 2.4 cannot prepare another one next to it."""
        session, self._own = self._own, None
        if session is None:
            return
        with suppress(Exception), self.ours():
            if not self._own_started:  # torch cannot end a session that has not started
                session._start_trace()
            session.__exit__(None, None, None)


def _unknown_session() -> bool:
    """Return whether a profiler is recording that began before install() or not through a wrapped method."""
    enabled = getattr(torch._C._autograd, "_profiler_enabled", None)  # this thread's only
    return bool(enabled is not None and enabled()) or bool(getattr(autograd_profiler, "_is_profiler_enabled", False))


def _wrap(kind: type, name: str, wrapper: Callable[[Callable[[], Any], Any], Any]) -> None:
    original = getattr(kind, name)

    @wraps(original)
    def wrapped(self: Any, *arguments: Any, **keywords: Any) -> Any:
        return wrapper(lambda: original(self, *arguments, **keywords), self)

    setattr(kind, name, wrapped)
