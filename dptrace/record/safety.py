"""Let nothing that dptrace puts around a user's code harm it: what fails turns itself off, and the training goes on.

Each function that the user's code runs into (a hook, what a wrapper of torch's function does before and after it, a
thread's loop) is :func:`harmless`. Ctrl-C, SIGTERM and ``sys.exit`` pass through: they are not dptrace's errors.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from dptrace.core.units import sanitize

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")
_PACKAGE = Path(__file__).resolve().parents[1]
_USERS = (_PACKAGE / "trainers", Path(__file__).resolve().parent / "script" / "execute.py")
"""What is not the recorder: the trainers, and the frame that calls the script."""


def say(text: str) -> None:
    """Print lines to standard error, if that can be written: it may be closed, broken or full."""
    # Not to None, which a closed one is: print() would choose standard output.
    if sys.stderr is not None:
        with suppress(Exception):
            print("\n".join(map(sanitize, text.split("\n"))), file=sys.stderr, flush=True)


on_failure: list[Callable[[str], None]] = []
"""Called with the sentence about a part without which there is no recording."""


@dataclass(slots=True)
class Part:
    """A function of dptrace that runs inside a user's code."""

    what: str
    function: Callable[..., Any]
    is_needed: bool
    """Whether the recording ends without it."""
    failed: bool = False

    def fail(self, error: Exception) -> None:
        """Turn it off, and say so."""
        self.failed = True
        text = f"{self.what} failed and is off from now on ({type(error).__name__}: {error})"
        say(f"dptrace: {text}; the training goes on.")
        if self.is_needed:
            for end in on_failure:
                with suppress(Exception):
                    end(f"{text[:1].upper()}{text[1:]}.")


parts: dict[str, Part] = {}
"""All of them, by the qualified name of the function."""


def harmless(
    what: str, otherwise: Any = None, is_needed: bool = False
) -> Callable[[Callable[_Arguments, _Result]], Callable[_Arguments, _Result]]:
    """Decorate a function so that its errors do not reach the user's code: after the first, it does nothing more.

    Args:
        what: what it does, for the sentence about its error: ``counting steps``.
        otherwise: what it returns after an error.
        is_needed: whether the recording ends without it.
    """

    def decorate(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
        part = parts[f"{function.__module__}.{function.__qualname__}"] = Part(what, function, is_needed)

        @functools.wraps(function)
        def call(*arguments: _Arguments.args, **keywords: _Arguments.kwargs) -> _Result:
            if part.failed:
                return otherwise
            try:
                return part.function(*arguments, **keywords)
            except Exception as error:
                part.fail(error)
                return otherwise

        return call

    return decorate


def replace(owners: Sequence[Any], name: str, wrapped: Callable[..., Any]) -> Callable[[], None]:
    """Put a function in place of the one with this name in modules or classes; return what undoes that.

    What other code has wrapped since stays as it is: the function then only passes calls on.
    """
    before = [vars(owner)[name] for owner in owners]
    for owner in owners:
        setattr(owner, name, wrapped)

    def undo() -> None:
        for owner, original in zip(owners, before, strict=True):
            if vars(owner).get(name) is wrapped:
                setattr(owner, name, original)

    return undo


def is_own(trace: TracebackType | None) -> bool:
    """Return whether the frame in which an error was raised is dptrace's recorder, not the user's code or a library."""
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return False
    file = Path(trace.tb_frame.f_code.co_filename)
    return file.is_relative_to(_PACKAGE) and not any(file.is_relative_to(path) for path in _USERS)
