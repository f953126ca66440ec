"""Find which rank failed first, and why, from the ranks' messages, exit codes and logs."""

from __future__ import annotations

import faulthandler
import json
import linecache
import os
import re
import signal
import sys
import sysconfig
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any, TextIO

from dptrace.core.units import duration, ranks_text, sanitize
from dptrace.record.messages import TERMINATED, LauncherSettings, read_messages, write_json
from dptrace.record.messages import rank as own_rank
from dptrace.record.safety import harmless

# Explain in one sentence why a script died, for errors that many scripts meet.


_CUDA_ADVICE = (
    "this needs CUDA, and there is none here. Run it on a machine with a GPU, or let it choose the CPU (device "
    '"cpu", backend "gloo")'
)
_ON_PYPI = """
accelerate bitsandbytes datasets deepspeed diffusers einops evaluate gymnasium jax keras lightning matplotlib mlflow
nltk numpy omegaconf pandas peft requests safetensors schedulefree scipy sentencepiece tensorboard timm tokenizers torch
torchaudio torchdata torchmetrics torchtune torchvision tqdm transformers triton trl wandb xformers
"""
_PIP_NAMES = {
    **{name: name for name in _ON_PYPI.split()},
    "hydra": "hydra-core",
    "ignite": "pytorch-ignite",
    "stable_baselines3": "stable-baselines3",
    "PIL": "pillow",
    "cv2": "opencv-python",
    "google.protobuf": "protobuf",
    "pytorch_lightning": "pytorch-lightning",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}


def _missing_module(match: re.Match[str]) -> str:
    module = match["name"]
    top = module.partition(".")[0]
    if package := _PIP_NAMES.get(module) or _PIP_NAMES.get(top):
        return f"the script imports {module}, which is not installed here: pip install {package}"
    return (
        f"Python finds no module {module}: neither beside the script, nor among the installed packages of "
        f"{sys.executable}. Start it in the folder where it runs without dptrace, or install what it belongs to"
    )


def _missing_file(match: re.Match[str]) -> str:
    path = match["path"]
    where = "" if os.path.isabs(path) else f" in {os.getcwd()}, where it looks for it"
    return f"the script needs {path}, which is missing{where}"


_CAUSES: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    (
        (
            r"Torch not compiled with CUDA"
            r"|module 'torch\._C' has no attribute '_cuda_"
            r"|No CUDA GPUs are available"
            r"|Found no NVIDIA driver"
            r"|ProcessGroupNCCL is only supported with GPUs"
            r"|Distributed package doesn't have NCCL"
            r"|torch\.cuda\.is_available\(\) is False"
            r"|(?:Cannot access|no) accelerator device when none is available"
            r"|CUDA driver initialization failed"
        ),
        _CUDA_ADVICE,
    ),
    (
        r"(?:CUDA|HIP) error: invalid device ordinal",
        (
            "a rank asks for a GPU that this machine does not have: start one process per GPU (--gpus), and use "
            "LOCAL_RANK as the device's number"
        ),
    ),
    (
        r"OutOfMemoryError|CUDA out of memory",
        "the GPU's memory is full: use a smaller batch, or close other programs on this GPU",
    ),
    (
        r"EADDRINUSE|[Aa]ddress already in use",
        "the port that the ranks meet at is in use: another job runs, or has not ended; choose another MASTER_PORT",
    ),
    (r"^ModuleNotFoundError: No module named '(?P<name>[^']+)'", _missing_module),
    (r"^FileNotFoundError: \[Errno 2\] No such file or directory: '(?P<path>[^']+)'", _missing_file),
    (
        r"environment variable (?:RANK|WORLD_SIZE|MASTER_\w+) expected|^KeyError: '(?:LOCAL_)?(?:RANK|WORLD_SIZE)'$",
        (
            "the script expects a launcher, and dptrace starts a single process without one: dptrace record torchrun "
            "--nproc-per-node 1 train.py …"
        ),
    ),
    (r"^exit code 2$", "the script refused its arguments, which are the words after its name"),
)
_PATTERNS = [(re.compile(pattern), cause) for pattern, cause in _CAUSES]


def explain(message: str) -> str:
    """Return the message of an error, after its cause if that is known.

    Args:
        message: class and text of the exception that ended a rank.
    """
    for pattern, cause in _PATTERNS:
        match = pattern.search(message)
        if match is not None:
            sentence = cause if isinstance(cause, str) else cause(match)
            return f"{sentence} ({message.strip().splitlines()[0]})"
    return message


_LAST_LINES = 12
"""Of a log, which say why a rank failed."""
_FOLLOW_UP_ERROR = re.compile(
    r"connection (reset|closed|refused)|broken pipe|by peer|remote|abort|timed? ?out", re.IGNORECASE
)
"""Matches the errors of ranks whose peer has ended."""


def is_consequence(message: str) -> bool:
    """Return whether a rank failed because another one did, or because the launcher ended it."""
    return message == "ended by SIGTERM" or bool(_FOLLOW_UP_ERROR.search(message))


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure that caused the others."""

    rank: int | None
    message: str
    exit_code: int = 1
    is_user_error: bool = False
    """Whether the message is complete advice, so that the rank's last lines would only hide it."""

    def to_dict(self) -> dict[str, Any]:
        """Return the entry for run.json."""
        return {"rank": self.rank, "message": self.message}

    def __str__(self) -> str:
        if self.rank is None:
            return f"The training failed: {self.message}"
        return f"Rank {self.rank} {'was' if self.message.startswith('ended by') else 'died:'} {self.message}"


def find_failure(folder: Path) -> Failure | None:
    """Find the failure that ended the run; None if the folder contains no message or exit code of one.

    :func:`find_restarts` returns the failures after which torchrun restarted the ranks.
    """
    agents = sorted(folder.glob("agent*.json"))
    exits = [entry for agent in agents for entry in json.loads(agent.read_text(encoding="utf-8"))]
    messages = _messages(folder)
    failure = _first_failure(exits, messages)
    return failure if failure is None else _blame_who_left(folder, failure, messages)


def has_failures(folder: Path, before_ns: int | None = None) -> bool:
    """Return whether a rank has reported a failure since the last restart.

    Args:
        before_ns: leave out what comes later, in ns since 1970.
    """
    return any(before_ns is None or int(message["time_ns"]) < before_ns for message in _messages(folder))


def recorder_failures(folder: Path) -> dict[int, str]:
    """Return why ranks could not be recorded although their training went on, by rank, since the last restart."""
    return {found["rank"]: found["message"] for found in _messages(folder, of_recorder=True)}


def _messages(folder: Path, of_recorder: bool = False) -> list[dict[str, Any]]:
    """Return the failures of ranks, or of their recording alone, since the last restart."""
    restarts = len(_restarts(folder))
    found = [message for message in read_messages(folder, "failure") if message.get("attempt", 0) >= restarts]
    return [message for message in found if bool(message.get("of_recorder")) == of_recorder]


def _blame_who_left(folder: Path, failure: Failure, messages: Sequence[dict[str, Any]]) -> Failure:
    """Name a rank that ended without an error before its peer failed for want of it."""
    failed = {int(message["rank"]): int(message["time_ns"]) for message in messages}
    if failure.rank not in failed or not _FOLLOW_UP_ERROR.search(failure.message):
        return failure
    left = {}
    for path in folder.glob("rank*.steps"):
        rank, recorded = int(path.stem.removeprefix("rank")), int(path.read_text().split()[2])
        ended_ns = path.stat().st_mtime_ns
        if recorded < 0 and rank not in failed and ended_ns < failed[failure.rank]:
            left[ended_ns] = rank
    if not left:
        return failure
    text = f"rank {left[min(left)]} ended without an error first; rank {failure.rank} then failed"
    return Failure(None, f"{text}: {failure.message}", failure.exit_code)


def _first_failure(exits: Sequence[dict[str, Any]], messages: Sequence[dict[str, Any]]) -> Failure | None:
    """Return the failure that caused the others.

    Args:
        exits: exit codes of ranks in torchrun's order.
        messages: the failure messages of the ranks.
    """
    messages = sorted(messages, key=lambda message: int(message["time_ns"]))
    # torchrun doesn't see the ranks that a script itself starts; the script's process reports their exit codes.
    exits = [*(message for message in messages if message["exit_code"] < 0), *exits]
    messages = [message for message in messages if message["exit_code"] >= 0]
    for entry in exits:
        number = -entry["exit_code"]
        # A signal leaves no message and precedes the errors of peers. torchrun stops the peers by SIGTERM. SIGABRT
        # comes from NCCL's watchdog in the peers of a dead rank, or from a failed assertion in the rank itself.
        is_cause = number > 0 and number != signal.SIGTERM
        if is_cause and not (number == signal.SIGABRT and messages and not is_consequence(messages[0]["message"])):
            name = signal.Signals(number).name
            hint = " (out of memory?)" if name == "SIGKILL" else ""
            return Failure(entry["rank"], f"ended by {name}{hint}", 128 + number)
    told = {message["rank"] for message in messages}
    silent = [
        entry
        for entry in exits
        if entry["rank"] not in told and entry["exit_code"] not in (0, -signal.SIGTERM, TERMINATED)
    ]
    # A rank that left without a message, by os._exit() for example, ended the peers whose only message is SIGTERM.
    if messages and not (silent and all(message["exit_code"] == TERMINATED for message in messages)):
        first = messages[0]
        message = first["message"] if first["advice"] else explain(first["message"])
        return Failure(first["rank"], message, first["exit_code"], first["advice"])
    if exits:
        rank, code = (silent or exits)[0]["rank"], (silent or exits)[0]["exit_code"]
        return Failure(
            rank, "ended by SIGTERM" if code in (-signal.SIGTERM, TERMINATED) else f"exit code {code}", abs(code)
        )
    return None


def _restarts(folder: Path) -> list[dict[str, Any]]:
    """Read which ranks had failed before each restart; each machine reports its own."""
    restarts: dict[int, dict[str, Any]] = {}
    for path in sorted(folder.glob("restarts.agent*.json")):
        for entry in json.loads(path.read_text(encoding="utf-8")):
            restart = restarts.setdefault(entry["attempt"], {**entry, "exits": []})
            restart["exits"] += entry["exits"]
    return [restarts[attempt] for attempt in sorted(restarts)]


def find_restarts(folder: Path) -> list[dict[str, Any]]:
    """Return the failure before each restart, as entries of run.json; ``time_s`` in seconds since 1970."""
    entries = []
    for restart in _restarts(folder):
        attempt = restart["attempt"]
        messages = [found for found in read_messages(folder, "failure") if found.get("attempt", 0) == attempt]
        failure = _first_failure(restart["exits"], messages) or Failure(None, "unknown")
        entries.append({"attempt": attempt, "time_s": restart["time_ns"] / 1e9, **failure.to_dict()})
    return entries


def last_lines(log: Path) -> str:
    """Return the last lines of a rank's output under a heading, to add to a message; "" if there are none."""
    if not log.exists():
        return ""
    lines = log.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()
    # Kineto of torch 2.13 prints a line each time that it starts or stops.
    last = [f"\n    {line}" for line in lines if not line.startswith("USDT:")][-_LAST_LINES:]
    return "\nIts last lines:" + "".join(last) if last else ""


# Find out where ranks are that make no progress: each one's line, and who has begun fewer collectives than others.
#
# A rank answers in two ways, also while it is stuck inside C++ code: at a signal, faulthandler writes its stacks
# without Python; a thread writes torch's latest collectives, as code that waits for peers or a GPU lets other threads
# run.


STACKS_SIGNAL: int | None = int(signal.SIGRTMIN) + 7 if hasattr(signal, "SIGRTMIN") else None
"""The signal at which a rank writes its stacks; None where the system has no realtime signals. SIGUSR1 and SIGUSR2 are
the scripts' (Slurm, Lightning), SIGTERM and SIGINT torchrun's; glibc and libraries count realtime ones from either end.
"""
_POLL_S = 1.0
"""How often a rank looks whether the launcher asks."""
_MAX_ANSWER_S = 10.0
"""How long the ranks may take to answer, on a machine that may be busy."""
_REQUEST = "stacks.request"
_HEADER = re.compile(r"# process (\d+)\n")
_THREAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+(?: \[.*\])? \(most recent call first\):")
"""The start of a thread's stack; Python 3.14 adds its name."""
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_STANDARD = re.compile(r"[/\\]lib(?:64)?[/\\]python3\.\d+[/\\](?!(?:site|dist)-packages)")
"""A file of Python's own library, on whatever machine."""
_OWN = Path(__file__).resolve().parents[1]
_BETWEEN = ("wrapper", "decorate_context", "_wrapped_call_impl", "_call_impl")  # the user's line and what it calls
_DUMPS = ("_dump_nccl_trace_json", "_dump_fr_trace_json")
"""torch's functions, in order: NCCL's own from 2.5 on, those of all backends from 2.8 on."""

_file: TextIO | None = None
"""Stays open: the handler writes to its descriptor."""


def answer_launcher() -> None:
    """Let a rank that ``dptrace record`` started answer; without it, a hang is described by the steps alone."""
    settings = LauncherSettings.from_environment()
    if settings is not None:
        with suppress(OSError):
            install(Path(settings.folder), own_rank())


def install(folder: Path, number: int) -> bool:
    """Make this process, of this rank, answer the launcher in a folder.

    Return whether that works: not where the system has no such signal, or the script itself handles it.
    """
    global _file
    if STACKS_SIGNAL is None or signal.getsignal(STACKS_SIGNAL) is not signal.SIG_DFL:
        return False
    previous, _file = _file, (folder / f"rank{number}.stacks").open("w", encoding="utf-8")
    # First the handler, then the header that invites a signal, whose default action is to end the process.
    faulthandler.register(STACKS_SIGNAL, file=_file, all_threads=True, chain=False)
    _file.write(f"# process {os.getpid()}\n")
    _file.flush()
    if previous is not None:
        previous.close()
    threading.Thread(target=_answer, args=(folder, number), name="dptrace_stacks", daemon=True).start()
    return True


@harmless("answering the launcher")
def _answer(folder: Path, number: int) -> None:
    """Write this rank's latest collectives each time that the launcher asks."""
    answered = 0
    while True:
        time.sleep(_POLL_S)
        with suppress(OSError):
            asked = (folder / _REQUEST).stat().st_mtime_ns
            if asked != answered:
                answered = asked
                write_json(folder / f"rank{number}.collectives.json", latest_collectives())


def latest_collectives() -> dict[str, tuple[int, str]]:
    """Return number and name of the last collective that this process has begun in each group, as torch recorded it.

    A torch before 2.8 does not record gloo's at all, and one before 2.5 none.
    """
    import torch

    library = getattr(torch._C, "_distributed_c10d", None)
    for dump in filter(None, (getattr(library, name, None) for name in _DUMPS)):
        lasts: dict[str, tuple[int, str]] = {}
        with suppress(Exception):  # private functions of torch, in a process that is stuck
            for entry in json.loads(dump()).get("entries", ()):
                (group, name), number = group_and_name(entry), entry.get("collective_seq_id")
                # Sends and receives have numbers of their own, which differ between ranks.
                if isinstance(number, int) and not entry.get("is_p2p") and number >= lasts.get(group, (0, ""))[0]:
                    lasts[group] = number, name
        if lasts:
            return lasts
    return {}


def group_and_name(entry: Mapping[str, Any]) -> tuple[str, str]:
    """Return what a collective's group and operator are called, from its entry in torch's flight recorder."""
    named = entry.get("process_group") or [entry.get("pg_id")]
    return " ".join(map(str, dict.fromkeys(named))), str(entry.get("profiling_name", "")).rpartition(":")[2]


def ask_ranks(folder: Path, processes: Collection[int]) -> None:
    """Make the ranks of this machine write their stacks and latest collectives; return then, or after 10 s.

    Args:
        processes: ids of the processes that may be signaled, the descendants of torchrun: a number in a file may by now
            be another program's, which the signal would end.
    """
    answers = []
    for path in folder.glob("rank*.stacks"):
        header = _HEADER.match(path.read_text(encoding="utf-8", errors="replace"))
        if header is not None and int(header[1]) in processes and STACKS_SIGNAL is not None:
            answers.append(path.with_suffix(".collectives.json"))
            answers[-1].unlink(missing_ok=True)
            with suppress(OSError):
                os.kill(int(header[1]), STACKS_SIGNAL)
    (folder / _REQUEST).write_text(str(time.time_ns()), encoding="utf-8")
    deadline = time.monotonic() + _MAX_ANSWER_S
    while not all(path.exists() for path in answers) and time.monotonic() < deadline:
        time.sleep(0.05)


def describe_hang(folder: Path, last_steps: Mapping[int, int | None], seconds: float) -> str:
    """Describe where the ranks are, from what :func:`ask_ranks` made them write, and which one has fewer collectives.

    Args:
        last_steps: the last step that each rank has ended, by rank; None if it has ended none.
        seconds: how long no rank has made progress.
    """
    places: dict[str, list[int]] = {}
    counts: dict[str, dict[int, tuple[int, str]]] = {}
    for number, step in sorted(last_steps.items()):
        place = _place(folder / f"rank{number}.stacks") + ("" if step is None else f", after step {step}")
        places.setdefault(place, []).append(number)
        with suppress(OSError, ValueError):
            found = json.loads((folder / f"rank{number}.collectives.json").read_text(encoding="utf-8"))
            for group, last in found.items():
                counts.setdefault(group, {})[number] = tuple(last)
    clauses = "; ".join(f"{ranks_text(ranks)} at {place}" for place, ranks in places.items())
    text = f"No progress for {duration(seconds * 1e9)}: {clauses}."
    for group, lasts in sorted(counts.items()):
        if sentence := who_is_behind(group, lasts):
            text += f" {sentence}"
    return sanitize(text)


def who_is_behind(group: str, lasts: Mapping[int, tuple[int, str]], did: str = "began") -> str:
    """Return which ranks of a group have begun fewer collectives than others; "" if all have begun the same number.

    Args:
        lasts: number and name of the last collective that each rank has begun.
        did: what the ranks did with that many, if not to begin them.
    """
    most, name = max(lasts.values())
    ahead = [number for number, (count, _) in lasts.items() if count == most]
    behind = [number for number, (count, _) in lasts.items() if count < most]
    if not behind:
        return ""
    least = min(lasts.values())[0]
    ahead_text = f"{ranks_text(ahead)} {did} collective {most} ({name})"
    return f"In group {group}, {ahead_text}, {ranks_text(behind)} only {least}."


def _place(path: Path) -> str:
    """Return the user's line in the main thread's latest stack, and what it calls; a dump lists that thread last."""
    stack: list[tuple[str, int, str]] = []
    with suppress(OSError):
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if _THREAD.match(line):
                stack = []
            elif found := _FRAME.match(line):
                stack.append((found[1], int(found[2]), found[3]))
    if not stack:
        return "an unknown line (no stack: ended, or stuck in the system)"
    return user_line(stack, linecache.getline)


def user_line(stack: Sequence[tuple[str, int, str]], code: Callable[[str, int], str] = lambda file, number: "") -> str:
    """Return the user's line in a stack, and what it calls.

    Args:
        stack: file, line and function of each frame, the most recent call first; at least one.
        code: returns the text of a line; a stack from elsewhere names files that are not to be read here.
    """
    index = min(range(len(stack)), key=lambda number: (_distance(stack[number][0]), number))
    file, number, function = stack[index]
    calls = [name for _, _, name in reversed(stack[:index]) if name not in _BETWEEN]
    what = f"in {calls[0]}" if calls else f"{function}: {code(file, number).strip()[:60]}"
    return f"{PureWindowsPath(file).name}:{number} ({what})"


def _distance(file: str) -> int:
    """Return how far a file is from the user's code: 0 for a script or trainer, 1 for a package, else 2."""
    if re.search(r"[/\\](?:site|dist)-packages[/\\]", file):
        return 2 if "-packages/torch/" in file.replace("\\", "/") else 1
    is_own = Path(file).is_relative_to(_OWN) and not Path(file).is_relative_to(_OWN / "trainers")
    is_standard = file.startswith(("<", sysconfig.get_path("stdlib"))) or _STANDARD.search(file)
    return 2 if is_own or is_standard else 0
