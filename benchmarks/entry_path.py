"""How far the code runs before it reads: files that a command enters, and calls deep at the first trace byte.

``python benchmarks/entry_path.py [CHECKOUT [VERB RUN OPTION...]]`` prints the numbers, and the files in the order of
their first calls; compare two checkouts by running it for both. Without a verb it is ``analyze`` of two small ranks. A
file is entered where one of its functions is called; importing it does not count.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any


class Tracer:
    """Count the product's files that are entered and the crossings between them, until the run ends."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self.files: dict[str, None] = {}
        """In the order of the first call."""
        self.crossings = 0
        self.depth: int | None = None
        self.files_before: int | None = None

    def own(self, frame: FrameType | None) -> str | None:
        name = frame.f_code.co_filename if frame is not None else ""
        real = os.path.realpath(name) if name.startswith(self.root) else ""
        return real if real.startswith(self.root) and not {".venv", "benchmarks"} & {*Path(real).parts} else None

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and (file := self.own(frame)) and not self._importing(frame):
            self.files[file] = None
            self.crossings += self.own(frame.f_back) not in (file, None)
        elif event == "c_call" and self.depth is None and argument.__name__ == "peek":
            self.files_before = len(self.files)
            self.depth = self._depth(frame)

    def _importing(self, frame: FrameType | None) -> bool:
        """Return whether a frame runs while one of the product's files is imported."""
        while frame is not None:
            if frame.f_code.co_name == "<module>" and self.own(frame):
                return True
            frame = frame.f_back
        return False

    def _depth(self, frame: FrameType | None) -> int:
        """Count the product's functions on the stack, click's and the standard library's left out."""
        depth = 0
        while frame is not None:
            depth += self.own(frame) is not None and frame.f_code.co_name != "<module>"
            frame = frame.f_back
        return depth


def main() -> None:
    """Run a command in this process under the tracer."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parents[1]).resolve()
    command = sys.argv[2:] or ["analyze", str(root / "traces" / "interleaved_cpu_2ranks")]
    sys.path.insert(0, str(root))
    tracer = Tracer(root)
    with TemporaryDirectory() as folder:
        output = (
            [] if "-o" in command else ["-o", str(Path(folder, "answer.html" if command[0] == "view" else "answer"))]
        )
        sys.argv = ["dptrace", *command, "--no-cache", "-q", *output]
        _run(tracer)
    print(
        f"files entered: {len(tracer.files)} ({tracer.files_before} before the first byte), crossings between files: "
        f"{tracer.crossings}, calls deep at the first byte: {tracer.depth}",
        *(os.path.relpath(file, root) for file in tracer.files),
        sep="\n",
    )


def _run(tracer: Tracer) -> None:
    from dptrace.commands.shared.main import main as entry

    sys.setprofile(tracer)
    try:
        entry()
    except SystemExit:
        pass
    finally:
        sys.setprofile(None)


if __name__ == "__main__":
    main()
