"""Execute a script or a module as Python would: ``__main__``, ``sys.argv``, ``sys.path``, and the traceback."""

from __future__ import annotations

import io
import os
import runpy
import sys
import types
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import TracebackType

# What Python itself calls for -m, folders and archives. The public functions take __main__ away when the program ends,
# and threads and exit handlers may still need it.
_run_as_main = runpy._run_module_as_main  # type: ignore[attr-defined]


def execute(program: str, is_module: bool) -> None:
    """Execute the program as ``__main__``; ``sys.argv`` holds it and its arguments already.

    The first entry of ``sys.path`` is replaced by what Python puts there.

    Args:
        program: a script, a folder or archive with a ``__main__.py``, the dotted name of a module, or ``-`` for a
            script on standard input.
    """
    main = types.ModuleType("__main__")
    main.__dict__.update(__builtins__=__builtins__, __cached__=None)
    sys.modules["__main__"] = main
    if is_module:
        if not getattr(sys.flags, "safe_path", False):
            sys.path[0] = os.getcwd()
        sys.argv[0] = "-m"  # what Python sets while it imports the packages above the module
        _run_as_main(program, True)
        return
    if program == "-":
        sys.path[0] = ""
        exec(compile(sys.stdin.buffer.read(), "<stdin>", "exec", dont_inherit=True), main.__dict__)
        return
    path = Path(program)
    is_source = path.is_file() and _is_source(path)
    if not is_source or not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(path.resolve().parent if is_source else path.absolute())
    if not is_source:
        _run_as_main("__main__", False)
        return
    full = str(path.absolute())
    main.__dict__.update(__file__=full, __loader__=SourceFileLoader("__main__", full))
    with io.open_code(full) as file:
        code = compile(file.read(), full, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def _is_source(path: Path) -> bool:
    with path.open("rb") as file:
        first = file.read(4)
    return not first.startswith(b"PK\x03\x04") and path.suffix != ".pyc"


def program_frames(trace: TracebackType | None) -> TracebackType | None:
    """Drop the frames before the program's first, so that the traceback is the one that Python would show."""
    start = Path(__file__).parents[1] / "launch" / "start.py"
    own = {__file__, runpy.__file__, "<frozen runpy>", str(Path(__file__).with_name("runner.py")), str(start)}
    while trace is not None and trace.tb_frame.f_code.co_filename in own:
        trace = trace.tb_next
    return trace
