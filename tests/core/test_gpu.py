"""What software tells about a GPU."""

from __future__ import annotations

from dptrace.core.gpu import GpuProperties, properties_of


def test_properties_are_read_from_a_trace_whatever_it_holds() -> None:
    """What torch writes; and what a stranger may."""
    recorded = {"id": 0, "name": "AMD Instinct MI210", "totalGlobalMem": 68702699520, "computeMajor": 9, "warpSize": 64}

    assert GpuProperties("AMD Instinct MI210", 104, (9, 0), 64, 68702699520) == properties_of(
        recorded | {"numSms": 104}
    )
    assert GpuProperties("", 0, (0, 0), 0, 0) == properties_of({"numSms": "many", "warpSize": -1})
    assert properties_of("GPU") is None
