"""Run the tutorials and write what their commands print below them: ``python docs/make_tutorials.py [PAGE …]``.

A page runs in a folder that holds what a clone holds. A ``text`` block right after commands is what they print; it is
replaced. Blocks that need recordings of others run where DPTRACE_RECORDINGS names a folder with them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TUTORIALS = ROOT / "docs" / "tutorials"
_BLOCK = re.compile(
    r"^(?P<mark><!-- not run: (?P<why>[^\n]+) -->\n)?```bash\n(?P<commands>.*?)^```\n(?P<output>\n```text\n.*?^```\n)?",
    re.MULTILINE | re.DOTALL,
)
_NEEDS = re.compile(r"needs recordings/(\w+)")


def regenerate(page: Path) -> None:
    """Run a page's commands in order, and write their output into the page.

    Raises:
        SystemExit: a command fails.
    """
    text = page.read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder)
        for name in ("traces", "docs"):
            (here / name).symlink_to(ROOT / name)
        if recordings := os.environ.get("DPTRACE_RECORDINGS"):
            (here / "recordings").symlink_to(Path(recordings).resolve())

        def run(block: re.Match[str]) -> str:
            needed = _NEEDS.search(block["why"] or "")
            is_long = (block["why"] or "").startswith("takes")  # too long for a test, not for this
            if block["why"] and not is_long and not (needed and (here / "recordings" / needed[1]).exists()):
                print(f"{page.name}: not run, {block['why']}")
                return block[0]
            printed = _printed(block["commands"], here)
            start = f"{block['mark'] or ''}```bash\n{block['commands']}```\n"
            return f"{start}\n```text\n{printed}```\n" if block["output"] else start

        page.write_text(_BLOCK.sub(run, text), encoding="utf-8")


def _printed(commands: str, folder: Path) -> str:
    """Return what commands print on standard output."""
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "110",
        "BROWSER": "true",
    }
    done = subprocess.run(
        ["bash", "-e", "-c", commands], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{commands}\n{done.stdout}\n{done.stderr}")
    lines = (line.rstrip() for line in done.stdout.replace(str(folder), ".").strip("\n").splitlines())
    return "".join(f"{line}\n" for line in lines)


def main() -> None:
    """Regenerate the pages that are named, or all."""
    for page in [Path(name) for name in sys.argv[1:]] or sorted(TUTORIALS.glob("*.md")):
        regenerate(page)
        print(f"{page.name}: written")


if __name__ == "__main__":
    main()
