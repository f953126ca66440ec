"""What launcher and ranks tell each other: one environment variable, and small files in the run's folder."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from dptrace.errors import DptraceError

__all__ = [
    "RESULTS",
    "LauncherSettings",
    "error_text",
    "initialized_process_group",
    "local_rank",
    "rank",
    "read_messages",
    "report_failure",
    "restart_count",
    "world_size",
    "write_json",
]

_ENV_VARIABLE = "DPTRACE_RECORDING"

RESULTS = "RESULTS_JSON:"
"""Begins the line that rank 0 of a timed training prints at its end; what follows is one JSON object. Any script that
prints such a line can be benched."""


@dataclass(frozen=True, slots=True)
class LauncherSettings:
    """What ``dptrace record`` asks of the processes it starts."""

    folder: str
    """Where the ranks put their files."""
    display_path: str
    """The name that the folder will have."""
    steps: int | None = None
    """None where the user did not say; then the script's own ``record()`` decides."""
    warmup: int | None = None
    wait: int | None = None
    progress: bool = False
    """Whether rank 0 is to tell how far it is."""

    def environment(self) -> dict[str, str]:
        """Give the variable by which :meth:`mine` finds it."""
        return {_ENV_VARIABLE: json.dumps(asdict(self))}

    def schedule(self, steps: int, warmup: int, wait: int | None) -> tuple[int, int, int | None]:
        """Give the user's numbers, and a script's own where the user gave none."""
        return (
            steps if self.steps is None else self.steps,
            warmup if self.warmup is None else self.warmup,
            wait if self.wait is None else self.wait,
        )

    @classmethod
    def from_environment(cls) -> LauncherSettings | None:
        """Give this process's assignment; None when ``dptrace record`` did not start it."""
        text = os.environ.get(_ENV_VARIABLE)
        return cls(**json.loads(text)) if text else None


def initialized_process_group() -> Any:
    """Give torch.distributed where this process has joined a group by itself; None where the environment tells all.

    Scripts that spawn their ranks, or that Slurm starts, hand rank and size to init_process_group() and set no
    variable. Under ``dptrace record`` torchrun's numbers stand: they are unique whatever groups a script makes.
    """
    dist = sys.modules.get("torch.distributed")
    if _ENV_VARIABLE in os.environ or dist is None or not (dist.is_available() and dist.is_initialized()):
        return None
    return dist


def rank() -> int:
    """Give this process's rank in the job; 0 when it is alone."""
    joined = initialized_process_group()
    return int(os.environ.get("RANK", "0") if joined is None else joined.get_rank())


def local_rank() -> int:
    """Give this process's rank on its machine."""
    return int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")))


def restart_count() -> int:
    """Tell how often torchrun has started the ranks anew."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def world_size() -> int:
    """Give the number of ranks in the job."""
    joined = initialized_process_group()
    return int(os.environ.get("WORLD_SIZE", "1") if joined is None else joined.get_world_size())


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file so that it is there whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    # Options are the user's: what JSON does not know, such as a torch.dtype, is told as its text.
    temporary.write_text(json.dumps(content, indent=1, default=str) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def read_messages(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Read the ranks' files of one kind (``piece``, ``failure``), in the order of ranks."""
    notes = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob(f"rank*.{kind}.json")]
    return sorted(notes, key=lambda note: int(note["rank"]))


def report_failure(error: BaseException) -> None:
    """Tell the launcher at once what went wrong here, so that the first of several failures can be named.

    A peer of a rank that dies fails a moment later, often within the interval in which torchrun looks; only a time
    taken where it happened tells cause from consequence.
    """
    assignment = LauncherSettings.from_environment()
    if assignment is None:
        return
    attempt = restart_count()
    again = f".again{attempt}" if attempt else ""
    path = Path(assignment.folder) / f"rank{rank()}{again}.failure.json"
    if path.exists():
        return
    known = isinstance(error, DptraceError)
    code = error.exit_code if isinstance(error, DptraceError) else 1
    message = {
        "rank": rank(),
        "time_ns": time.time_ns(),
        "message": error_text(error),
        "advice": known,
        "exit_code": code,
    }
    message["attempt"] = attempt
    write_json(path, message)


def error_text(error: BaseException) -> str:
    """Say what went wrong: our own errors say it themselves, others begin with their kind."""
    return str(error) if isinstance(error, DptraceError) else f"{type(error).__name__}: {error}"
