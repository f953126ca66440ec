"""Peaks, and what was alive at them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dptrace.analysis.memory.figures import (
    alive_blocks,
    bytes_by_kind,
    groups,
    kind_groups,
    levels_within,
    peak_among,
    phase_peaks,
    total_bytes,
)
from dptrace.analysis.memory.usage import DeviceMemory, MemoryKind
from dptrace.timeline.model import Phase
from tests.support.memory_files import GOLDEN, only_device, replay, training_file, use_of
from tests.support.real_traces import needs_real_traces, real


def assert_like_replay(device: DeviceMemory) -> None:
    changes = list(zip(device.events.address.tolist(), device.events.bytes.tolist(), strict=True))
    replayed = replay(changes, device.baseline_bytes)
    peak = peak_among(device, levels_within(device, None))

    assert replayed.totals == device.events.allocated.tolist()
    assert max(replayed.totals) == peak.bytes
    assert replayed.alive_at_peak == device.blocks.bytes[alive_blocks(device, peak.level)].tolist()


def test_the_golden_recording_equals_a_replay_of_its_events() -> None:
    """Totals at each event, the peak and the blocks alive at it, of a CPU's recording."""
    assert_like_replay(only_device(GOLDEN / "rank0.pt.trace.json.gz"))


@pytest.mark.heavy
@needs_real_traces
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("compute/h100_qwen_0.5b/trace.json.gz", [(0, 984_742_400, 2_088_508_416), (-1, 0, 16)]),
        ("compute/mi300_qwen_0.5b/trace.json.gz", [(0, 1_085_405_696, 2_219_047_936), (-1, 0, 8)]),
        ("perparam_v100_rank1of2/df_index_resolver.json.gz", [(1, 4_096_614_400, 6_629_508_096), (-1, 0, 8)]),
    ],
)
def test_real_recordings_equal_a_replay(name: str, expected: list[tuple[int, int, int]]) -> None:
    """Of an H100, an MI300 and a V100; device, bytes at the start, peak."""
    devices = use_of(Path(real(name))).devices
    for device in devices:
        assert_like_replay(device)

    assert expected == [(d.device, d.baseline_bytes, int(d.events.allocated.max())) for d in devices]


@pytest.mark.parametrize("gpu", [True, False])
def test_kinds_add_up_to_the_total_at_every_level(tmp_path: Path, gpu: bool) -> None:
    """Also where what was there before is freed: on a CPU it is below 0 then, as the file's total is."""
    file = training_file(gpu=gpu)
    file.memory(1, -60, 99, allocated=-60 if not gpu else 940, device=0 if gpu else -1)
    device = only_device(file.write(tmp_path / "a.json"))
    levels = bytes_by_kind(device)

    assert np.array_equal(total_bytes(device), levels.sum(axis=0))
    assert (levels[1:] >= 0).all()
    assert (1000 if gpu else 0) - 60 == levels[MemoryKind.PREEXISTING, 1]


def test_peaks_of_steps_and_phases(tmp_path: Path) -> None:
    """A phase has at least what it finds: the optimizer's peak holds the gradients of backward."""
    device = only_device(training_file().write(tmp_path / "a.json"))
    found = {(one.step, one.phase): one.bytes for one in phase_peaks(device)}

    assert {
        (0, None): 1300,
        (0, Phase.FORWARD): 1048,
        (0, Phase.BACKWARD): 1140,
        (0, Phase.OPTIMIZER): 1300,
        (0, Phase.OTHER): 1116,
        (1, None): 1340,
        (1, Phase.FORWARD): 1300,
        (1, Phase.BACKWARD): 1340,
        (1, Phase.OTHER): 1316,
    } == found


def test_the_peak_among_some_steps_is_theirs(tmp_path: Path) -> None:
    """A step begins with the level that it finds."""
    device = only_device(training_file().write(tmp_path / "a.json"))

    first = peak_among(device, levels_within(device, np.array([True, False])))
    assert (1300, 0, Phase.OPTIMIZER) == (first.bytes, first.step, first.phase)
    assert 1340 == peak_among(device, levels_within(device, None)).bytes
    assert 0 == len(levels_within(device, np.array([False, False])))


def test_groups_share_the_bytes_at_the_peak(tmp_path: Path) -> None:
    """Kinds share all of them; operators share what was allocated in the recording."""
    device = only_device(training_file().write(tmp_path / "a.json"))
    levels = levels_within(device, None)
    peak = peak_among(device, levels)
    by_kind = {MemoryKind(one.key): one for one in kind_groups(device, levels, peak)}
    by_operator = groups(device, device.origins.operator[device.blocks.born], levels, peak)

    assert {
        MemoryKind.PREEXISTING: 1000,
        MemoryKind.OPTIMIZER_STATE: 200,
        MemoryKind.GRADIENT: 100,
        MemoryKind.ACTIVATION: 40,
        MemoryKind.TEMPORARY: 0,
        MemoryKind.COMMUNICATION: 0,
    } == {kind: one.peak_bytes for kind, one in by_kind.items()}
    assert (200, 2) == (by_kind[MemoryKind.GRADIENT].allocated_bytes, by_kind[MemoryKind.GRADIENT].allocations)
    assert peak.bytes - 1000 == sum(one.peak_bytes for one in by_operator)
