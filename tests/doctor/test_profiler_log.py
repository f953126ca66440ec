"""What the profiler's library writes, and what it means."""

from __future__ import annotations

import pytest

from dptrace.doctor.profiler_log import hindrances, lost_records, missing_kernel_causes

ADVICE = "INFO:2026-05-11 17:23:45 9:9 init.cpp:158] If you see CUPTI_ERROR_INSUFFICIENT_PRIVILEGES, refer to https://x"
"""A line that Kineto prints after each failure, whatever the error was."""


def kineto(error: str) -> str:
    """Return what Kineto prints when CUPTI does not start."""
    return (
        f"WARNING:2026-05-11 17:23:45 9:9 init.cpp:155] function cbapi->getCuptiStatus() failed with error {error} "
        "(15)\n"
        "WARNING:2026-05-11 17:23:45 9:9 init.cpp:156] CUPTI initialization failed - CUDA profiler activities will be "
        f"missing\n{ADVICE}\n"
    )


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("CUPTI_ERROR_INSUFFICIENT_PRIVILEGES", ["--cap-add=SYS_ADMIN", "NVreg_RestrictProfilingToAdminUsers=0"]),
        ("CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED", ["nsys", "CUDA_INJECTION64_PATH"]),
        ("CUPTI_ERROR_HARDWARE_BUSY", ["DCGM", "dcgmi profile --pause"]),
        ("CUPTI_ERROR_NOT_INITIALIZED", ["driver"]),
        ("CUPTI_ERROR_NEW_IN_CUDA_14", ["CUPTI_ERROR_NEW_IN_CUDA_14"]),
    ],
)
def test_an_error_of_cupti_has_a_cause_and_a_remedy(error: str, words: list[str]) -> None:
    """Each known error names what to do, an unknown one itself; the line of advice counts as no error."""
    (cause,) = missing_kernel_causes(kineto(error) * 2)

    assert all(word in cause for word in [*words, error])


def test_a_missing_library_is_named() -> None:
    """Where libcupti cannot be loaded, its name and the package are given."""
    (cause,) = missing_kernel_causes("OSError: libcupti.so.12: cannot open shared object file: No such file")

    assert "libcupti.so.12" in cause
    assert "pip install" in cause


def test_a_quiet_log_has_no_cause() -> None:
    """Lines of a healthy recording are no error."""
    assert [] == missing_kernel_causes(f"USDT:2026-11-22 SyncActivityProfilerHandler.cpp:52] profiler_start\n{ADVICE}")


def test_what_hinders_is_found_on_the_machine() -> None:
    """A tool that injects itself, and a driver for administrators only; nothing on a machine without either."""
    tool, driver = hindrances(
        {"CUDA_INJECTION64_PATH": "/opt/nsight/libToolsInjection64.so"}, "Mobile: 1\nRmProfilingAdminOnly: 1\n"
    )

    assert "CUDA_INJECTION64_PATH" in tool
    assert "NVreg_RestrictProfilingToAdminUsers" in driver
    assert () == hindrances({"HOME": "/root"}, "RmProfilingAdminOnly: 0\n")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("WARNING:2026-05-11 CuptiActivityApi.cpp:238] Dropped 4711 activity records", "4711"),
        ("WARNING: Exceeded max GPU buffer count (33 >= 33) - terminating tracing", "buffers were full"),
        ("UserWarning: Device profiling activity collection was stopped early at step 3", "buffers were full"),
    ],
)
def test_lost_records_are_found(line: str, words: str) -> None:
    """What Kineto and torch say about records that they lost is found, once."""
    (lost,) = lost_records(f"{line}\n{line}\n")

    assert words in lost
    assert [] == lost_records("Max GPU buffer size: 128MB")
