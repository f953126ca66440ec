"""The environment of a rank: its device and the versions of the relevant software."""

from __future__ import annotations

import platform

import torch

from dptrace.record.ranks.accelerator import ACCELERATORS, accelerator_of
from dptrace.version import __version__

__all__ = ["device_name", "versions"]


def device_name(device: torch.device) -> str:
    """Return the name of the device, ``CPU`` for any processor."""
    accelerator = accelerator_of(device)
    return "CPU" if accelerator is None else str(accelerator.module.get_device_name(device))


def versions() -> dict[str, str | None]:
    """Return the versions of dptrace, torch, Python, and of each accelerator's platform and backend."""
    found: dict[str, str | None] = {
        "dptrace": __version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    for accelerator in ACCELERATORS:
        found[accelerator.device_type] = getattr(torch.version, accelerator.device_type, None)
        found[accelerator.backend] = accelerator.backend_version()
    return found
