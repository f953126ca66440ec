"""Run dptrace's command line, torchrun and the ranks as forks of a process that has imported torch.

A recording with two ranks starts three processes that import torch and its compiler, which takes 9 of its 13 CPU
seconds. Here each of these processes has the same parent, arguments, environment and outputs, but it is a fork. Tests
of how processes start, end and are killed start them for real.

A process with several threads is never forked: the fork would wait for ever for a lock that a thread held at that
moment, be it Python's or the C library's. So each process has a *starter*, a child that was forked before the process
ran anything, has one thread, and only forks. Linux makes the starter's grandchildren children of the process itself
while that is their subreaper. Elsewhere all processes start for real.
"""

from __future__ import annotations

import atexit
import ctypes
import faulthandler
import gc
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

from dptrace.record.processes import descendants, end_with_parent
from tests.support import faults

_PRELOADED = (
    "torch",
    "torch._dynamo",
    "torch.distributed.run",
    "torch.distributed.tensor.parallel",
    "torch.distributed.fsdp",
    "torch.distributed.pipelining",
    "torch.profiler",
    "numpy",
    "pandas",
    "rich.table",
    "dptrace.commands.advise",
    "dptrace.commands.analyze",
    "dptrace.commands.diff",
    "dptrace.commands.export",
    "dptrace.commands.kernels",
    "dptrace.commands.record",
    "dptrace.commands.report",
    "dptrace.commands.view",
    "dptrace.commands.whatif",
    "dptrace.load.open",
    "dptrace.record.recording",
    "dptrace.record.launch.launcher",
    "dptrace.trainers.parts.task",
    "dptrace.viewers.gantt.page.document",
)


_installed = [path for path in sys.path[1:] if path not in os.environ.get("PYTHONPATH", "").split(os.pathsep)]
"""Where Python finds packages, without the folder of the program."""


limit_s = 900.0
"""How long the current test may take; its settings change it."""


def run_python(
    *arguments: str, cwd: Path | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run Python with these arguments, which are ``-m`` and a module, or a script.

    Raises:
        AssertionError: it nearly took as long as a test may; the message ends with the stacks of its processes.
    """
    timeout = 0.9 * limit_s
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, *arguments]
    with start_python(*arguments, cwd=cwd, env=env, text=True, **pipes) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            for pid in (*descendants(process.pid), process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGABRT)  # faulthandler then prints the stacks of all threads
            try:
                err = process.communicate(timeout=10)[1]
            except subprocess.TimeoutExpired as still:
                process.kill()
                err = (still.stderr or b"").decode() + "It doesn't end when it is aborted."
            raise AssertionError(f"{command} still ran after {timeout:.1f} s.\n{err}") from None
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def start_python(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start Python with these arguments, which are ``-m`` and a module, or a script, as ``Popen`` does."""
    if _starter() is None and sys.platform == "linux":
        _start_starter()
    return _ForkingPopen([sys.executable, *arguments], **options)


def fork_commands(monkeypatch: Any) -> None:
    """Let what this process starts with ``subprocess`` be forks, too, during a test."""
    if _starter() is None and sys.platform == "linux":
        _start_starter()
    monkeypatch.setattr(subprocess, "Popen", _ForkingPopen)


_COMMAND = """#!{python} -ES
import json, os, socket, sys
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect({address!r})
request = {{"arguments": ["-m", {module!r}, *sys.argv[1:]], "cwd": os.getcwd(), "env": dict(os.environ)}}
socket.send_fds(server, [json.dumps(request).encode()], [0, 1, 2])
sys.exit(int(server.recv(32)))
"""


@cache
def folder_of_command() -> str | None:
    """Return a folder for the PATH of a shell: its dptrace and torchrun run as forks; None where none can be forked."""
    if sys.platform != "linux":
        return None
    if _starter() is None:
        _start_starter()
    folder = tempfile.mkdtemp(prefix="dptrace-command-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server.bind(f"{folder}/socket")
    server.listen()
    for name, module in (("dptrace", "dptrace"), ("torchrun", "torch.distributed.run")):
        command = Path(folder, name)
        command.write_text(_COMMAND.format(python=sys.executable, module=module, address=f"{folder}/socket"))
        command.chmod(0o755)

    def accept() -> None:
        while True:
            threading.Thread(target=_run_command, args=(server.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return folder


def _run_command(asking: socket.socket) -> None:
    """Fork for a shell's command, and tell it the exit code."""
    starter = _starter()
    assert starter is not None
    with asking:
        text, files, _, _ = socket.recv_fds(asking, 1 << 20, 3)
        request = json.loads(text) | {"new_session": False, "parent": os.getpid()}
        pid = _fork(starter, json.dumps(request), files)
        for file in files:
            os.close(file)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        asking.send(str(code if code >= 0 else 128 - code).encode())


class _ForkingPopen(subprocess.Popen[Any]):
    """Lets the starter fork where a Python process is to be started, and executes everything else."""

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, *others: Any) -> None:
        (_, pass_fds, cwd, env, _, _, shell, *pipes) = others[:13]
        # What follows is different in each version of Python, but for its beginning.
        new_session = others[18]
        starter = _starter()
        if starter is None or shell or pass_fds or preexec_fn or not _can_be_a_fork(args, env):
            super()._execute_child(args, executable, preexec_fn, *others)  # type: ignore[misc]
            return
        request = {
            "arguments": list(args[1:]),
            "cwd": os.path.abspath(cwd or "."),
            "env": dict(os.environ if env is None else env),
            "new_session": new_session,
            "parent": os.getpid(),
        }
        given = [own if file == -1 else file for own, file in enumerate((pipes[0], pipes[3], pipes[5]))]
        self.pid = _fork(starter, json.dumps(request), given)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def _can_be_a_fork(args: Any, env: dict[str, str] | None) -> bool:
    """Return whether a command is a Python with a module or a script, and the same settings as here."""
    if isinstance(args, str | bytes) or args[0] != sys.executable:
        return False
    first = next((word for word in args[1:] if word != "-u"), "-")
    if first != "-m" and first.startswith("-"):
        return False
    settings = [
        {name: value for name, value in variables.items() if name.startswith("PYTHON") and name != "PYTHONPATH"}
        for variables in (os.environ, env or os.environ)
    ]
    return settings[0] == settings[1]


_PR_SET_CHILD_SUBREAPER = 36
_asking = threading.Lock()
_own_starter: tuple[int, socket.socket] | None = None
"""The id of the process that has a starter, and the connection to it; a process that is forked otherwise has none."""


def _starter() -> socket.socket | None:
    return _own_starter[1] if _own_starter and _own_starter[0] == os.getpid() else None


def _fork(starter: socket.socket, request: str, files: list[int]) -> int:
    """Return the id of a new child of this process."""
    with _asking:
        _adopt_orphans(True)
        try:
            socket.send_fds(starter, [request.encode()], files)
            answer = starter.recv(32)
        finally:
            _adopt_orphans(False)
    assert answer, "the process that forks has ended"
    return int(answer)


def _adopt_orphans(value: bool) -> None:
    """Let orphans among this process's descendants become its children, or not."""
    assert 0 == ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(value), 0, 0, 0)


def _start_starter() -> None:
    """Start the first starter, which imports torch; it ends with this process."""
    global _own_starter
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        starter = subprocess.Popen(
            [sys.executable, "-m", "tests.support.forking", str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            cwd=Path(__file__).parents[2],
            env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OPENBLAS_NUM_THREADS": "1"},  # NumPy's would start threads
            pass_fds=[theirs.fileno()],
        )
    _own_starter = os.getpid(), ours

    def end() -> None:
        with ours, starter:
            starter.kill()

    atexit.register(end)


def _fork_starter() -> None:
    """Give this process, which has run nothing yet, a starter."""
    global _own_starter
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not os.fork():
        ours.close()
        _serve(theirs)
    theirs.close()
    _own_starter = os.getpid(), ours


def _serve(requests: socket.socket) -> NoReturn:
    """Fork for each request, until the process that asks has ended."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is for the others
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for file in (0, 1, 2):
        os.dup2(nothing, file)  # who reads the output of that process waits until everybody has closed it
    while True:
        text, files, _, _ = socket.recv_fds(requests, 1 << 20, 3)
        if not text:
            os._exit(0)
        between = os.fork()
        if not between:
            _fork_orphan(requests, json.loads(text), files)
        os.waitpid(between, 0)
        for file in files:
            os.close(file)


def _fork_orphan(requests: socket.socket, request: dict[str, Any], files: list[int]) -> NoReturn:
    """Fork and end, so that the process that asks becomes the fork's parent."""
    between = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == between:
        time.sleep(0.001)
    requests.send(str(os.getpid()).encode())
    requests.close()
    end_with_parent(signal.SIGKILL, str(request["parent"]))  # so that a test that is ended leaves none of them
    for target, file in enumerate(files):
        os.dup2(file, target)
        os.close(file)
    _fork_starter()
    if request["new_session"]:
        os.setsid()
    _become(request["arguments"], request["env"], request["cwd"])


def _become(arguments: list[str], env: dict[str, str], cwd: str) -> NoReturn:
    """Do in a fork what Python does with a command line, and end."""
    code = 1
    try:
        _reset(env, cwd)
        code = _exit_code(arguments)
        threading._shutdown()  # type: ignore[attr-defined]
    except BaseException:
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _reset(env: dict[str, str], cwd: str) -> None:
    """Forget what only the parent has: its signal handlers, exit functions, environment and folder."""
    atexit._clear()
    faulthandler.enable()
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    # What was opened for other files may take these for seekable.
    for name, file, errors in (("stdout", 1, "strict"), ("stderr", 2, "backslashreplace")):
        stream = open(file, "w", buffering=1, closefd=False, errors=errors)  # noqa: SIM115 - as long as the process
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    import torch

    if "OMP_NUM_THREADS" in env:
        torch.set_num_threads(int(env["OMP_NUM_THREADS"]))


_left: dict[str, Any] = {}
"""What a program leaves behind. It is never freed: gloo's group would wait, with the interpreter's lock, for a thread
that may need this lock to free a collective."""


def _exit_code(arguments: list[str]) -> int:
    """Run a module or a script as the main program."""
    while arguments[0] == "-u":
        del arguments[0]
    is_module = arguments[0] == "-m"
    program, *rest = arguments[is_module:]
    faults.install(rest[0] if program.endswith("start.py") else program)
    _shorten_epochs(os.environ.get(SAMPLES))
    sys.argv = [program, *rest]
    sys.orig_argv = [sys.executable, *arguments]
    first = os.getcwd() if is_module else os.path.dirname(os.path.abspath(program))
    sys.path[:] = [first, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)), *_installed]
    try:
        if is_module:
            sys.modules.pop(program, None)
            _left.update(runpy.run_module(program, run_name="__main__", alter_sys=True))
        else:
            _left.update(runpy.run_path(program, run_name="__main__"))
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


SAMPLES = "DPTRACE_TEST_SAMPLES"
"""The variable that says how many samples a trainer's epoch has, instead of 32,768."""


def _shorten_epochs(samples: str | None) -> None:
    if samples:
        from dptrace.record.options import validation
        from dptrace.trainers.parts import models

        for module in (validation, models):
            vars(module)["SAMPLES"] = int(samples)


def _main(descriptor: int) -> None:
    subprocess.Popen = _ForkingPopen  # type: ignore[misc]  # before torchrun's modules keep its name
    for name in _PRELOADED:
        __import__(name)
    threads = os.listdir("/proc/self/task")
    assert 1 == len(threads), f"importing torch has started threads: {threads}"
    gc.collect()
    gc.freeze()  # a fork need not go through, and so copy, all that torch's import has made
    _serve(socket.socket(fileno=descriptor))


if __name__ == "__main__":
    _main(int(sys.argv[1]))
