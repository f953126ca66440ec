"""Run dptrace's command line, torchrun and the ranks as forks of a process that has imported torch.

A recording with two ranks starts three processes that import torch and its compiler, which takes 9 of its 13 CPU
seconds. Here each of these processes has the same parent, arguments, environment and outputs, but it is a fork. Tests
of how processes start, end and are killed start them for real.
"""

from __future__ import annotations

import atexit
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

__all__ = ["run_python"]

_PRELOADED = (
    "torch",
    "torch._dynamo",
    "torch.distributed.run",
    "torch.distributed.tensor.parallel",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.profiler",
    "numpy",
    "dptrace.commands.recording.record",
    "dptrace.record.recording",
    "dptrace.record.launch.launcher",
    "dptrace.trainers.parts.task",
)


_installed = [path for path in sys.path[1:] if path not in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
"""Where Python finds packages, without the folder of the program."""


def run_python(
    *arguments: str, cwd: Path | None = None, env: dict[str, str] | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments, which are ``-m`` and a module, or a script.

    Raises:
        subprocess.TimeoutExpired: it took longer than *timeout* seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, name) for name in ("out", "err")]
        variables = dict(os.environ if env is None else env)
        request = {"arguments": arguments, "cwd": str(cwd or Path.cwd()), "env": variables}
        answer = _ask(json.dumps(request | {"outputs": list(map(str, outputs))}), timeout)
        out, err = (path.read_text() if path.exists() else "" for path in outputs)
    if not answer:
        raise subprocess.TimeoutExpired(list(arguments), timeout, out, err)
    return subprocess.CompletedProcess([sys.executable, *arguments], int(answer), out, err)


def _ask(request: str, timeout: float) -> str:
    """Return the server's answer; empty if it has taken too long, and then the server and its forks are killed."""
    server = _server()
    assert server.stdin is not None
    assert server.stdout is not None
    watch = threading.Timer(timeout, os.killpg, (server.pid, signal.SIGKILL))
    watch.start()
    server.stdin.write(request + "\n")
    server.stdin.flush()
    answer = server.stdout.readline()
    watch.cancel()
    if not answer:
        _server.cache_clear()
    return answer


@cache
def _server() -> subprocess.Popen[str]:
    """Start the process of which the others are forks; it ends with this one."""
    command = [sys.executable, "-m", "tests.support.forking"]
    root = Path(__file__).parents[2]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    server = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
        env=environment,
        start_new_session=True,
    )
    atexit.register(server.kill)
    return server


def _serve() -> None:
    """Run what is asked for, one after the other."""
    subprocess.Popen = _ForkingPopen  # type: ignore[misc]  # before torchrun's modules keep its name
    for name in _PRELOADED:
        __import__(name)
    for line in sys.stdin:
        request = json.loads(line)
        pid = os.fork()
        if not pid:
            opened = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for path in request["outputs"]]
            _become([os.open(os.devnull, os.O_RDONLY), *opened], request["arguments"], request["env"], request["cwd"])
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


class _ForkingPopen(subprocess.Popen[Any]):
    """Forks where a Python process is to be started, and executes everything else."""

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, *others: Any) -> None:
        (_, _, cwd, env, _, _, shell, *pipes) = others[:13]
        # What follows is different in each version of Python, but for its beginning.
        new_session = others[18]
        if shell or not _can_be_a_fork(args, env):
            super()._execute_child(args, executable, preexec_fn, *others)  # type: ignore[misc]
            return
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            if new_session:
                os.setsid()
            given = [pipes[0], pipes[3], pipes[5]]
            _become(given, list(args[1:]), dict(os.environ if env is None else env), cwd)
        self.pid = pid
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def _can_be_a_fork(args: Any, env: dict[str, str] | None) -> bool:
    """Return whether a command is a Python with a module or a script, and the same settings as here."""
    if isinstance(args, str | bytes) or args[0] != sys.executable or "-c" in args:
        return False
    if threading.current_thread() is not threading.main_thread():
        return False  # the main thread may hold a lock, which the fork would wait for and nobody would release
    settings = [
        {name: value for name, value in variables.items() if name.startswith("PYTHON") and name != "PYTHONPATH"}
        for variables in (os.environ, env or os.environ)
    ]
    return settings[0] == settings[1]


def _become(files: Sequence[int], arguments: list[str], env: dict[str, str], cwd: str | Path | None) -> NoReturn:
    """Do in a fork what Python does with a command line, and end."""
    code = 1
    try:
        _reset(files, env, cwd)
        code = _exit_code(arguments)
        threading._shutdown()  # type: ignore[attr-defined]
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _reset(files: Sequence[int], env: dict[str, str], cwd: str | Path | None) -> None:
    """Forget what only the parent has: its outputs, signal handlers, exit functions, environment and folder."""
    atexit._clear()
    for target, file in enumerate(files):
        if file not in (-1, target):
            os.dup2(file, target)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd or ".")
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    import torch

    if "OMP_NUM_THREADS" in env:
        torch.set_num_threads(int(env["OMP_NUM_THREADS"]))


def _exit_code(arguments: list[str]) -> int:
    """Run a module or a script as the main program."""
    if arguments[0] == "-u":
        del arguments[0]
    is_module = arguments[0] == "-m"
    program, *rest = arguments[is_module:]
    sys.argv = [program, *rest]
    sys.orig_argv = [sys.executable, *arguments]
    first = os.getcwd() if is_module else os.path.dirname(os.path.abspath(program))
    sys.path[:] = [first, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *_installed]
    try:
        if is_module:
            sys.modules.pop(program, None)
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(program, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


if __name__ == "__main__":
    _serve()
