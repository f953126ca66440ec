"""Messages between launcher and ranks: one environment variable, and small files in the run's folder."""

from __future__ import annotations

import json
import os
import platform
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dptrace.core.files import replacing
from dptrace.core.units import plural
from dptrace.errors import DptraceError
from dptrace.record.processes import is_running
from dptrace.record.safety import say

_ENV_VARIABLE = "DPTRACE_RECORDING"
_OWN_ENV = "DPTRACE_OPTIONS"
"""The settings of a rank that records itself, without a launcher of dptrace, and of the processes that it starts."""
SPAWNED_FILE = "spawned"
"""Name of a file in the run's folder that is there once the script has started ranks itself."""
_SPAWNED_ENV = "DPTRACE_SPAWNED"
"""Environment variable of a rank that the script itself started: its number and the number of ranks."""

TERMINATED = 128 + signal.SIGTERM
"""The exit code of a rank that SIGTERM has ended: see ``tie_to_parent``."""

RESULTS = "RESULTS_JSON:"
"""Starts the line that rank 0 of a timed training prints at its end, followed by one JSON object. ``dptrace bench`` can
run any script that prints such a line."""
EPOCH = "EPOCH_JSON:"
"""Starts the line that rank 0 of a timed training prints at the end of each epoch, followed by one JSON object."""


@dataclass(frozen=True, slots=True)
class LauncherSettings:
    """The settings that ``dptrace record`` passes to the processes it starts."""

    folder: str = ""
    """Folder for the ranks' files; empty without a launcher."""
    display_path: str = ""
    """The final path of the run, for messages."""
    steps: int | None = None
    """None if the user did not give it; then the script's own ``record()`` decides."""
    warmup: int | None = None
    wait: int | None = None
    duration_s: float | None = None
    """Record this many seconds instead of a number of steps."""
    repeat: int = 1
    """How many windows to record."""
    every: int = 0
    """Steps from the beginning of one window to that of the next."""
    on_demand: bool = False
    """Whether windows begin only when the launcher asks for them."""
    light: bool = False
    """Whether to record kernels and communication only."""
    memory: bool = False
    """Whether to record each allocation and free."""
    modules: bool = False
    """Whether to mark the forward of each module."""
    shapes: bool = True
    """Whether to record the shapes of operators also where message sizes do not need them."""
    use_script_profiler: bool = False
    """Whether the traces of the script's own profiler are the recording."""
    script: bool = False
    """Whether the loop belongs to the user, so that its number of steps is unknown and it goes on when recorded."""
    force: bool = False
    """Whether to replace an existing run, without a launcher, which replaces it itself."""
    quiet: bool = False
    """Whether a rank without a launcher prints only errors."""

    def environment(self) -> dict[str, str]:
        """Return the environment variable that :meth:`from_environment` reads."""
        return {_ENV_VARIABLE: json.dumps(asdict(self))}

    def schedule(self, steps: int, warmup: int, wait: int | None) -> tuple[int, int, int | None]:
        """Return the user's numbers, or the script's own if the user gave none."""
        return (
            steps if self.steps is None else self.steps,
            warmup if self.warmup is None else self.warmup,
            wait if self.wait is None else self.wait,
        )

    @classmethod
    def from_environment(cls) -> LauncherSettings | None:
        """Return this process's settings; None if ``dptrace record`` did not start it."""
        text = os.environ.get(_ENV_VARIABLE)
        return cls(**json.loads(text)) if text else None

    def set_own(self) -> None:
        """Make these the settings of this process and those that it starts, which have no launcher of dptrace."""
        os.environ[_OWN_ENV] = json.dumps(asdict(self))

    @classmethod
    def own(cls) -> LauncherSettings | None:
        """Return the settings of a rank that records itself; None if ``python -m dptrace.record`` did not start it."""
        text = os.environ.get(_OWN_ENV)
        return cls(**json.loads(text)) if text else None

    @classmethod
    def or_default(cls, memory: bool, modules: bool, shapes: bool) -> LauncherSettings:
        """Return this process's settings, or the defaults; of the script's own, what differs from the default wins."""
        settings = cls.from_environment() or cls.own() or cls()
        return replace(
            settings,
            memory=settings.memory or memory,
            modules=settings.modules or modules,
            shapes=settings.shapes and shapes,
        )


def window_folder(staging: Path, number: int) -> Path:
    """Return the folder of a recorded window's files; windows count from 1."""
    return staging / f"window{number}"


def recorded_marker(staging: Path, number: int) -> Path:
    """Return the file by which the launcher marks a window as recorded, so that restarted ranks do not repeat it."""
    return staging / f"recorded{number}"


def request_path(staging: Path, number: int) -> Path:
    """Return the file by which the launcher asks rank 0 for a window while training runs; requests count from 1."""
    return staging / f"request-{number}.json"


def finish_path(staging: Path) -> Path:
    """Return the file by which the launcher asks all ranks to end their window after the current step."""
    return staging / "finish"


def rank_log(staging: Path, rank: int) -> Path:
    """Return the file with the output of a rank that is not shown."""
    return staging / f"rank{rank}.log"


class Writing:
    """Shows the launcher, by a file, that this process turns events into a trace and writes it; several may overlap."""

    def __init__(self, staging: Path, rank: int) -> None:
        self._path, self._count, self._lock = staging / f"rank{rank}.writing", 0, threading.Lock()

    @contextmanager
    def ended_elsewhere(self) -> Iterator[None]:
        """Begin to write; a thread calls :meth:`end`, unless the block raises an error."""
        with self._lock, suppress(OSError):  # the disk may be full, or the folder gone
            self._count += 1
            self._path.write_text(f"{os.getpid()} {platform.node()}")
        try:
            yield
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End to write."""
        with self._lock, suppress(OSError):
            self._count -= 1
            if not self._count:
                self._path.unlink(missing_ok=True)

    def __bool__(self) -> bool:
        """Return whether this process writes."""
        return self._count > 0


def writers(staging: Path) -> set[int]:
    """Return the ranks of this machine that are writing a trace at the moment."""
    found = set()
    for path in staging.glob("rank*.writing"):
        with suppress(OSError, ValueError):  # it has just ended
            process, _, host = path.read_text().partition(" ")
            if host == platform.node() and is_running(int(process)):
                found.add(int(path.stem.removeprefix("rank")))
    return found


def heartbeat_path(staging: Path, rank: int) -> Path:
    """Return the file in which a rank counts its steps: those done, and in all (0 if unknown)."""
    return staging / f"rank{rank}.steps"


def initialized_process_group() -> Any:
    """Return torch.distributed if rank and world size come from its process group; None if from the environment.

    Scripts that spawn their ranks, or that Slurm starts, pass rank and size to init_process_group() and set no
    variable. Under ``dptrace record``, torchrun's numbers are used: they are unique whatever groups a script creates.
    Ranks that the script itself starts have none of these.
    """
    dist = sys.modules.get("torch.distributed")
    numbered = _ENV_VARIABLE in os.environ and not is_spawned()
    if numbered or dist is None or not (dist.is_available() and dist.is_initialized()):
        return None
    return dist


def is_spawned() -> bool:
    """Return whether the script itself started this rank."""
    return _SPAWNED_ENV in os.environ


def set_spawned(index: int, ranks: int) -> None:
    """Make this process a rank that the script itself started; its number counts until it joins a process group."""
    os.environ[_SPAWNED_ENV] = f"{index} {ranks}"
    mark_spawned()


def mark_spawned() -> None:
    """Notify the launcher's other processes that the script starts ranks itself."""
    settings = LauncherSettings.from_environment()
    if settings is not None:
        with suppress(OSError):  # the launcher may be removing the folder
            (Path(settings.folder) / SPAWNED_FILE).touch()


def has_spawned() -> bool:
    """Return whether the script has started ranks itself."""
    settings = LauncherSettings.from_environment()
    return settings is not None and (Path(settings.folder) / SPAWNED_FILE).exists()


def leave_recording() -> None:
    """Make this process and those that it starts forget that ``dptrace record`` runs."""
    os.environ.pop(_ENV_VARIABLE, None)


def rank() -> int:
    """Return this process's rank in the job; 0 if it is the only process."""
    joined = initialized_process_group()
    if joined is None and is_spawned():
        return int(os.environ[_SPAWNED_ENV].split()[0])
    return int(os.environ.get("RANK", "0") if joined is None else joined.get_rank())


def local_rank() -> int:
    """Return this process's rank on its machine."""
    return int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")))


def restart_count() -> int:
    """Return how often torchrun has restarted the ranks."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def world_size() -> int:
    """Return the number of ranks in the job."""
    joined = initialized_process_group()
    if joined is None and is_spawned():
        return int(os.environ[_SPAWNED_ENV].split()[1])
    return int(os.environ.get("WORLD_SIZE", "1") if joined is None else joined.get_world_size())


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically, with null for numbers that are not finite, which JSON lacks."""
    # Users pass any options: other values that JSON lacks, such as a torch.dtype, are written as text.
    text = json.dumps(content, indent=1, default=str)
    if any(number in text for number in ("NaN", "Infinity")):  # or a text that holds the word
        text = json.dumps(json.loads(text, parse_constant=lambda number: None), indent=1)
    with replacing(path) as temporary:
        temporary.write_text(text + "\n", encoding="utf-8")


def read_messages(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Read the ranks' files of one kind (``piece``, ``failure``), in the order of ranks."""
    messages = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob(f"rank*.{kind}.json")]
    return sorted(messages, key=lambda message: int(message["rank"]))


def report_failure(error: BaseException, of_recorder: bool = False) -> None:
    """Write this rank's failure for the launcher at once, so that it can report the first of several failures.

    The peers of a dead rank fail a moment later, often within one polling interval of torchrun; only timestamps taken
    in the ranks separate cause from consequence.

    Args:
        of_recorder: only the recording has failed; the training goes on.
    """
    if LauncherSettings.from_environment() is None:
        if of_recorder and LauncherSettings.own() is not None:
            say(f"dptrace: {error_text(error)}")
        return
    write_failure(rank(), error_text(error), exit_code(error), isinstance(error, DptraceError), of_recorder)


def write_failure(number: int, text: str, exit_code: int, advice: bool = False, of_recorder: bool = False) -> None:
    """Write the failure of a rank, unless it has written one; the exit code is negative where a signal ended it."""
    settings, attempt = LauncherSettings.from_environment(), restart_count()
    suffix = (f".again{attempt}" if attempt else "") + (".recorder" if of_recorder else "")
    path = Path(settings.folder if settings else "", f"rank{number}{suffix}.failure.json")
    if settings is not None and not os.path.exists(path):
        message = {"rank": number, "time_ns": time.time_ns(), "message": text, "advice": advice}
        with suppress(OSError):  # the disk is full: the exit code must do
            write_json(path, message | {"exit_code": exit_code, "attempt": attempt, "of_recorder": of_recorder})


NOTHING_RECORDED = "Nothing was recorded: "
"""Starts the message about a training that went well and had nothing, or not enough, to record."""


def no_steps_message(program: str, passes: int = 0) -> str:
    """Return the message that there was no step to record.

    Args:
        passes: backward passes of the program, in which no optimizer of torch stepped.
    """
    made = f"{plural(passes, 'backward pass', 'backward passes')}, and no optimizer stepped" if passes else "no step"
    return (
        f"{NOTHING_RECORDED}{program} made {made}. Steps are those of an optimizer of torch.optim, or backward passes "
        "in a loop without any; in another loop, call dptrace.record.step() at the end of each pass."
    )


def exit_code(error: BaseException) -> int:
    """Return the exit code of a process that ends by this exception; negative if it ends by a signal."""
    if isinstance(error, SystemExit):
        return error.code & 0xFF if isinstance(error.code, int) else int(error.code is not None)
    if isinstance(error, KeyboardInterrupt):
        return -signal.SIGINT
    return error.exit_code if isinstance(error, DptraceError) else 1


def is_failure(error: BaseException | None) -> bool:
    """Return whether an exception is a failure, unlike sys.exit(0), Ctrl-C and the end of a generator."""
    if isinstance(error, SystemExit):
        return exit_code(error) != 0
    return error is not None and not isinstance(error, KeyboardInterrupt | GeneratorExit)


def error_text(error: BaseException) -> str:
    """Return the text of an error: dptrace's own errors as they are, others with their class."""
    if isinstance(error, SystemExit) and not isinstance(error.code, str):
        return "ended by SIGTERM" if error.code == TERMINATED else f"exit code {error.code}"
    return str(error) if isinstance(error, DptraceError) else f"{type(error).__name__}: {error}".removesuffix(": ")
