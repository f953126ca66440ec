"""What a rank runs on and with: its device, and the versions of what matters."""

from __future__ import annotations

import platform

import torch
import torch.distributed as dist

from dptrace.version import __version__

__all__ = ["device_name", "versions"]


def device_name(device: torch.device) -> str:
    """Name what trains."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def versions() -> dict[str, str | None]:
    """Give the versions of all that matters."""
    nccl = None
    if torch.cuda.is_available() and dist.is_available() and dist.is_nccl_available():
        nccl = ".".join(map(str, torch.cuda.nccl.version()))
    return {
        "dptrace": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "nccl": nccl,
    }
