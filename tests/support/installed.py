"""Check an installed dptrace without pytest: run its commands on the recorded runs, and its API.

``make package`` runs this with each Python, in an environment that has the wheel and nothing else.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

import dptrace

TRACES = Path(__file__).resolve().parents[2] / "traces"
RUN, BEFORE = TRACES / "interleaved_cpu_2ranks", TRACES / "naive_cpu_2ranks"
COMMANDS = (
    f"analyze {RUN}",
    f"analyze {RUN} --json",
    f"analyze {RUN} --csv",
    f"kernels {RUN} --by operator",
    f"view {RUN} --text",
    f"view {RUN} -o gantt.html --no-browser",
    f"report {RUN} -o report.html",
    f"diff {BEFORE} {RUN}",
    f"whatif {RUN} --bandwidth 2x",
    f"critical-path {RUN}",
    f"advise {RUN}",
    f"export {RUN} -o all.pftrace",
    f"analyze {RUN} --no-cache --jobs 2",
    "predict --memory --params 7e9 --gpus 64",
    "explain ring",
    "doctor",
)


def main() -> None:
    """Run all commands; the first that fails ends it with what was printed."""
    assert not Path(dptrace.__file__).is_relative_to(TRACES.parent), f"{dptrace.__file__} is not installed"
    with tempfile.TemporaryDirectory() as folder:
        for command in COMMANDS:
            done = subprocess.run(
                [sys.executable, "-m", "dptrace", *command.split()], cwd=folder, capture_output=True, text=True
            )
            assert done.returncode == 0, f"dptrace {command}: {done.returncode}\n{done.stdout}{done.stderr}"
    run = dptrace.open(RUN)
    assert len(run.steps())
    assert len(run.findings())
    assert run.whatif(bandwidth="2x").predicted_step_ns
    packages = " ".join(f"{name} {version(name)}" for name in ("numpy", "pandas", "bokeh", "click", "protobuf"))
    print(f"ok: dptrace {dptrace.__version__}, Python {sys.version.split()[0]}, {packages}")


if __name__ == "__main__":
    main()
