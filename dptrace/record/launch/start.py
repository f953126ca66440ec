"""Start a module of this dptrace: ``python start.py MODULE [ARGUMENTS]``.

``python -m`` would take a folder named dptrace in the working directory for it.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
from pathlib import Path

if __name__ == "__main__":
    # In place of this file's folder, until the script's own takes its place.
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = str(Path(__file__).resolve().parents[3])
    del sys.argv[0]
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:
        # Ctrl-C before the script begins: the traceback would show imports of dptrace's own.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
