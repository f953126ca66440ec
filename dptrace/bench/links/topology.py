"""How the processors and GPUs of this machine are connected; unknown parts are empty."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import Any

from dptrace.core.subprocess_pool import available_cores

__all__ = ["describe_machine"]

_NODES = Path("/sys/devices/system/node")
_TIMEOUT_S = 10


def describe_machine(node: int, numa: Path = _NODES) -> dict[str, Any]:
    """Return the name, cores and NUMA nodes of this machine, and the matrix of links that nvidia-smi prints.

    Args:
        node: the number of this machine in the job.
        numa: the folder in which Linux lists NUMA nodes.
    """
    return {
        "node": node,
        "host": platform.node(),
        "cores": available_cores(),
        "numa": _numa(numa),
        "gpu_matrix": _matrix(),
    }


def _numa(folder: Path) -> list[dict[str, str]]:
    """Return each NUMA node and its cores; empty where the system does not list them."""
    found = []
    for node in sorted(folder.glob("node[0-9]*"), key=lambda path: int(path.name.removeprefix("node"))):
        try:
            found.append({"node": node.name.removeprefix("node"), "cores": (node / "cpulist").read_text().strip()})
        except OSError:
            continue
    return found


def _matrix() -> str:
    """Return the output of ``nvidia-smi topo -m``; empty where the program is missing or fails."""
    try:
        done = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
