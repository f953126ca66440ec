"""Read the stacks that faulthandler writes: the main thread, the user's line in it, and what it waits for."""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Frame", "Place", "main_thread", "place_of"]

_THREAD = re.compile(r"(Current thread|Thread) 0x[0-9a-f]+(?: \[.*\])? \(most recent call first\):")
"""The start of a thread's stack; Python 3.14 adds its name."""
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_PACKAGES = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
_STANDARD = re.compile(r"[/\\]lib(?:64)?[/\\]python3\.\d+t?[/\\](?!(?:site|dist)-packages)|^<frozen |^<string>$")
_OWN = Path(__file__).resolve().parents[2]
_LONGEST_CODE = 60

_COLLECTIVES = ("torch/distributed/distributed_c10d.py", "torch/distributed/nn/functional.py")
_WAITS = (
    ("torch/utils/data/dataloader.py", "waits for the DataLoader"),
    ("torch/cuda/", "waits for the GPU"),
    ("torch/distributed/_functional_collectives.py", "waits for a collective"),
    ("torch/distributed/pipelining/", "is in the pipeline's schedule"),
    ("torch/distributed/checkpoint/", "writes or reads a checkpoint"),
    ("torch/distributed/fsdp/", "is in FSDP"),
    ("torch/distributed/", "waits in torch.distributed"),
    ("torch/autograd/", "is in backward"),
    ("torch/optim/", "is in an optimizer"),
    ("dptrace/record/ranks/distributed.py", "waits for the other ranks to start or end the recording"),
)
"""What a call of the user's line is about, by the file that is called, most specific first."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One call on a stack."""

    file: str
    line: int
    function: str

    @property
    def is_users(self) -> bool:
        """Whether the frame is neither Python's, nor a package's, nor dptrace's; its trainers count as the user's."""
        if Path(self.file).is_relative_to(_OWN):
            return Path(self.file).is_relative_to(_OWN / "trainers")
        return not (_PACKAGES.search(self.file) or _STANDARD.search(self.file))

    def ends_with(self, part: str) -> bool:
        """Return whether the file is *part*, or lies in it if that ends with a slash."""
        name = self.file.replace("\\", "/")
        return f"/{part}" in name if part.endswith("/") else name.endswith(f"/{part}")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank is."""

    doing: str
    """``waits in all_reduce``, or ``is in load_batch``."""
    location: str
    """The user's line: ``train.py:33``, with its code if the rank is in that line itself."""

    @property
    def waits(self) -> bool:
        """Whether it waits for something."""
        return self.doing.startswith("waits")


def main_thread(text: str) -> tuple[Frame, ...]:
    """Return the latest stack of the main thread, the most recent call first; empty if the text contains none.

    A dump lists the threads, the newest first, so that the main thread is the last one.
    """
    stack: list[Frame] = []
    for line in text.splitlines():
        if _THREAD.match(line):
            stack = []
        elif found := _FRAME.match(line):
            stack.append(Frame(found[1], int(found[2]), found[3]))
    return tuple(stack)


def place_of(stack: Sequence[Frame]) -> Place | None:
    """Return where a thread is in the user's terms; None for an empty stack."""
    if not stack:
        return None
    # A package's line is better than none, as where a framework calls the whole training from the command line.
    choices = (_is_users, _is_packages)
    index = next((i for choice in choices for i, frame in enumerate(stack) if choice(frame)), len(stack) - 1)
    frame, called = stack[index], stack[:index]
    location = f"{Path(frame.file).name}:{frame.line}"
    if doing := _doing(called):
        return Place(doing, location)
    if called:
        return Place(f"is in {called[-1].function}", location)
    return Place(f"is in {frame.function.strip('<>')}", location + _code(frame))


def _is_users(frame: Frame) -> bool:
    return frame.is_users


def _is_packages(frame: Frame) -> bool:
    is_ours = Path(frame.file).is_relative_to(_OWN)
    return bool(_PACKAGES.search(frame.file)) and not is_ours and not frame.ends_with("site-packages/torch/")


def _doing(called: Sequence[Frame]) -> str:
    """Return what the calls below the user's line are about; empty if they are unknown."""
    for frame in called:
        # A decorator's wrapper lies between some collectives and their callers.
        if any(frame.ends_with(file) for file in _COLLECTIVES) and frame.function != "wrapper":
            return f"waits in {frame.function}"
    return next((doing for file, doing in _WAITS if any(frame.ends_with(file) for frame in called)), "")


def _code(frame: Frame) -> str:
    code = linecache.getline(frame.file, frame.line).strip()
    return f": {code[:_LONGEST_CODE]}" if code else ""
