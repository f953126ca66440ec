"""The accelerators on which ranks train, one entry each: device type, communication backend, profiler activity.

Nothing here imports torch before a function needs it, so that the launcher can import this module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch.profiler import ProfilerActivity


def _nccl_version() -> str | None:
    import torch

    dist = torch.distributed
    if not (torch.cuda.is_available() and dist.is_available() and dist.is_nccl_available()):
        return None
    return ".".join(map(str, torch.cuda.nccl.version()))


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One kind of device."""

    device_type: str
    """The type of its torch.device, and the name of its module in torch: ``cuda`` for torch.cuda."""
    backend: str
    """The backend of torch.distributed between such devices."""
    activity_name: str
    """Its member of torch.profiler.ProfilerActivity."""
    visible_devices: tuple[str, ...]
    """The environment variables that restrict which devices a process sees."""
    device_files: tuple[str, ...]
    """Patterns of the files that Linux has in /dev for such devices; the launcher does not import torch without any."""
    backend_version: Callable[[], str | None]
    """Return the backend's version; None if this process cannot use it."""

    @property
    def module(self) -> Any:
        """torch's module for this kind of device, such as ``torch.cuda``."""
        import torch

        return getattr(torch, self.device_type)

    @property
    def activity(self) -> ProfilerActivity:
        """What the profiler records on these devices."""
        from torch.profiler import ProfilerActivity

        return getattr(ProfilerActivity, self.activity_name)

    @property
    def backend_config(self) -> str:
        """The entry of ``torch.distributed.get_backend_config()`` for a group that uses this backend."""
        return f"{self.device_type}:{self.backend}"


_VISIBLE = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_DEVICE_FILES = ("nvidia[0-9]*", "nvidiactl", "nvhost-*", "nvmap", "nvgpu", "kfd", "dxg")
"""Of NVIDIA's GPUs, also those of Jetson, of AMD's, and of either in Windows' Linux."""
ACCELERATORS = (Accelerator("cuda", "nccl", "CUDA", _VISIBLE, _DEVICE_FILES, _nccl_version),)
"""In order of preference. AMD GPUs use the entry of CUDA, as in torch."""


def accelerator_of(device: torch.device) -> Accelerator | None:
    """Return the entry for a device; None for the CPU."""
    return next((known for known in ACCELERATORS if known.device_type == device.type), None)


def available_accelerator() -> Accelerator | None:
    """Return the first accelerator that this machine has; None if there is only the CPU.

    Raises:
        ModuleNotFoundError: torch is not installed.
    """
    return next((known for known in ACCELERATORS if known.module.is_available()), None)


def used_accelerator() -> Accelerator | None:
    """Return the accelerator that this process has used; None if it has used only the CPU so far."""
    return next((known for known in ACCELERATORS if known.module.is_initialized()), None)


def backend_of(device: torch.device) -> str:
    """Return the backend for a process group on such devices: gloo on CPU."""
    accelerator = accelerator_of(device)
    return "gloo" if accelerator is None else accelerator.backend
