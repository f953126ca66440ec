"""What a machine tells of how its processors and GPUs are connected; what it does not tell is left empty."""

from __future__ import annotations

import platform
import subprocess
from pathlib import Path
from typing import Any

from dptrace.core.subprocess_pool import available_cores

__all__ = ["describe_machine"]

_NODES = Path("/sys/devices/system/node")
_PATIENCE_S = 10


def describe_machine(node: int, numa: Path = _NODES) -> dict[str, Any]:
    """Describe this machine: name, cores, NUMA nodes, and nvidia-smi's matrix of links as it prints it.

    Args:
        node: its number in the job.
        numa: where Linux lists its NUMA nodes.
    """
    return {
        "node": node,
        "host": platform.node(),
        "cores": available_cores(),
        "numa": _numa(numa),
        "gpu_matrix": _matrix(),
    }


def _numa(folder: Path) -> list[dict[str, str]]:
    """Give each NUMA node and its cores; nothing where the system does not tell."""
    found = []
    for node in sorted(folder.glob("node[0-9]*"), key=lambda path: int(path.name.removeprefix("node"))):
        try:
            found.append({"node": node.name.removeprefix("node"), "cores": (node / "cpulist").read_text().strip()})
        except OSError:
            continue
    return found


def _matrix() -> str:
    """Give what ``nvidia-smi topo -m`` prints; nothing where there is no such program, or it fails."""
    try:
        done = subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True, timeout=_PATIENCE_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
