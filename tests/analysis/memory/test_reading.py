"""A rank's memory from its file: devices, calls of the allocator, failures."""

from __future__ import annotations

from pathlib import Path

import dptrace
from dptrace.analysis.memory.reading import MEMORY
from tests.support.kineto_files import KinetoFile
from tests.support.memory_files import memory_run, training_file, use_of


def test_gpus_come_before_the_cpu(tmp_path: Path) -> None:
    """A rank's devices are told apart, each with its own totals."""
    file = training_file()
    file.memory(3, 8, 1, 8).memory(4, 32, 2, 32, device=1)

    assert ["GPU 0", "GPU 1", "CPU"] == [device.label for device in use_of(file.write(tmp_path / "a.json")).devices]


def test_calls_of_the_runtimes_allocator_have_their_step(tmp_path: Path) -> None:
    """cudaMalloc is one of them; a launch is none."""
    use = use_of(training_file().write(tmp_path / "a.json"))

    assert ["cudaMalloc"] == [use.names[i] for i in use.calls.name.tolist()]
    assert [0] == use.calls.step.tolist()


def test_a_failed_allocation_changes_no_total(tmp_path: Path) -> None:
    """It is kept apart from the events of the device."""
    file = training_file()
    file.memory(20, 1 << 40, 0, 1040, device=0, name="[OutOfMemory]")
    use = use_of(file.write(tmp_path / "a.json"))

    assert [1 << 40] == use.failed.bytes.tolist()
    assert 0 == use.devices[0].gaps


def test_a_file_without_memory_events_has_no_devices(tmp_path: Path) -> None:
    """It is no error: most recordings have none."""
    use = use_of(KinetoFile().op("aten::add", 10, 20).write(tmp_path / "a.json"))

    assert (0, ()) == (len(use), use.devices)


def test_a_run_reads_it_on_request(tmp_path: Path) -> None:
    """Through the run's reader of files, and again from the cache."""
    runs = [dptrace.open(memory_run(tmp_path)) for _ in range(2)]
    first, again = (run.read_again(run.timelines[1], MEMORY) for run in runs)
    assert first is not None
    assert again is not None

    assert 16 == len(first) == len(again)
