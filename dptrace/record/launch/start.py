"""Start a module of this dptrace: ``python start.py MODULE [ARGUMENTS]``.

``python -m`` would take a folder named dptrace in the working directory for it.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    # In place of this file's folder, until the script's own takes its place.
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(Path(__file__).resolve().parents[3])
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
