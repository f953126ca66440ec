"""How the processors and GPUs of this machine are connected; unknown parts are empty."""

from __future__ import annotations

import platform
from contextlib import suppress
from pathlib import Path
from typing import Any

from dptrace.core.subprocess_pool import available_cores, command_output

__all__ = ["describe_machine"]

_NODES = Path("/sys/devices/system/node")


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
        "gpu_matrix": command_output("nvidia-smi", "topo", "-m"),
    }


def _numa(folder: Path) -> list[dict[str, str]]:
    """Return each NUMA node and its cores; empty where the system does not list them."""
    found = []
    for node in sorted(folder.glob("node[0-9]*"), key=lambda path: int(path.name.removeprefix("node"))):
        with suppress(OSError):
            found.append({"node": node.name.removeprefix("node"), "cores": (node / "cpulist").read_text().strip()})
    return found
