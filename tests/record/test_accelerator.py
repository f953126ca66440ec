"""The table of accelerators: another kind of device is one entry."""

from __future__ import annotations

from types import SimpleNamespace
from uuid import UUID

import pytest

torch = pytest.importorskip("torch", reason="recording needs torch")

from dptrace.record.accelerator import (  # noqa: E402
    ACCELERATORS,
    Accelerator,
    accelerator_of,
    available_accelerator,
    backend_of,
    used_accelerator,
)
from dptrace.record.distributed import device_uuid, versions  # noqa: E402


def test_each_entry_names_parts_of_torch() -> None:
    """Module, profiler activity and backend exist in the installed torch, also on a machine without the device."""
    for accelerator in ACCELERATORS:
        assert callable(accelerator.module.is_available)
        assert accelerator.activity.name == accelerator.activity_name
        assert hasattr(torch.distributed, f"is_{accelerator.backend}_available")
        assert accelerator.backend_config == f"{accelerator.device_type}:{accelerator.backend}"


def test_a_device_determines_accelerator_and_backend() -> None:
    """CUDA devices use NCCL; the CPU has no entry and uses gloo."""
    gpu, cpu = torch.device("cuda", 1), torch.device("cpu")

    assert [gpu.type, None] == [getattr(accelerator_of(device), "device_type", None) for device in (gpu, cpu)]
    assert ["nccl", "gloo"] == [backend_of(device) for device in (gpu, cpu)]


def test_a_gpu_is_told_from_others_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its UUID, as text; torch before 2.4 has none, and a CPU neither."""
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: SimpleNamespace(uuid=UUID(int=device.index)))
    assert str(UUID(int=3)) == device_uuid(torch.device("cuda", 3))
    assert device_uuid(torch.device("cpu")) is None
    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: SimpleNamespace(name="V100"))
    assert device_uuid(torch.device("cuda", 0)) is None


def test_available_and_used_devices_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine may have a GPU that the process has not used."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: False)
    assert (ACCELERATORS[0], None) == (available_accelerator(), used_accelerator())
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    assert (None, ACCELERATORS[0]) == (available_accelerator(), used_accelerator())


def test_another_accelerator_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an entry for Intel GPUs, their devices use XCCL, and run.json holds its version."""
    xpu = Accelerator("xpu", "xccl", "XPU", ("ZE_AFFINITY_MASK",), ("dri/renderD*",), lambda: "2021.17")
    for module in ("accelerator", "distributed"):
        monkeypatch.setattr(f"dptrace.record.{module}.ACCELERATORS", (*ACCELERATORS, xpu))

    assert "xccl" == backend_of(torch.device("xpu", 0))
    assert torch.xpu is xpu.module
    assert "XPU" == xpu.activity.name
    assert "2021.17" == versions()["xccl"]
