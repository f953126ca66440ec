"""The classes that hold a rank's memory."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from dptrace.analysis.memory.usage import (
    KIND_LABELS,
    NOWHERE,
    DeviceMemory,
    MemoryKind,
    MemoryUse,
    alive_blocks,
    blocks_of,
    bytes_by_kind,
    continued_totals,
    levels_within,
    peak_among,
    phase_peaks,
    total_bytes,
)
from dptrace.core.array_file import dumps, loads
from dptrace.readers.trace import TOTAL_UNKNOWN
from dptrace.timeline.model import Phase
from tests.support.forking import run_python
from tests.support.kineto_files import KinetoFile
from tests.support.memory_files import GOLDEN, events_of, only_device, replay, training_file, use_of
from tests.support.real_traces import needs_real_traces, real


def test_memory_comes_back_from_the_cache(tmp_path: Path) -> None:
    """Every column survives the cache's format."""
    use = use_of(training_file().write(tmp_path / "a.json"))
    again = loads(b"".join(map(bytes, dumps(use))), MemoryUse)

    assert len(use) == len(again) > 0
    assert use.names == again.names
    assert use.devices[0].kind.tolist() == again.devices[0].kind.tolist()
    assert use.devices[0].baseline_bytes == again.devices[0].baseline_bytes == 1000


# Blocks: a free belongs to the allocation before it at its address.


@st.composite
def changes(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Draw allocations and frees as an allocator makes them, the first frees of blocks that were there before."""
    live: dict[int, int] = {}
    done = [(1000 + i, -draw(st.integers(1, 99))) for i in range(draw(st.integers(0, 2)))]
    for _ in range(draw(st.integers(1, 40))):
        free = [address for address in range(6) if address not in live]
        if live and (not free or draw(st.booleans())):
            address = draw(st.sampled_from(sorted(live)))
            done.append((address, -live.pop(address)))
        else:
            address = draw(st.sampled_from(free))
            live[address] = draw(st.integers(1, 99))
            done.append((address, live[address]))
    return done


@pytest.mark.heavy
@given(changes())
def test_blocks_are_those_of_a_replay(made: list[tuple[int, int]]) -> None:
    """For any sequence, size, birth and death of each block equal those of a dictionary of live blocks."""
    blocks = blocks_of(events_of(made))

    columns = (blocks.bytes.tolist(), blocks.born.tolist(), blocks.freed.tolist())
    assert replay(made).lives == sorted(zip(*columns, strict=True))


def test_a_lost_free_ends_no_other_block() -> None:
    """Two allocations at one address: the first block's free is missing, the second has the free that follows."""
    blocks = blocks_of(events_of([(1, 8), (1, 4), (1, -4)]))

    assert [(8, 0, -1), (4, 1, 2)] == list(
        zip(blocks.bytes.tolist(), blocks.born.tolist(), blocks.freed.tolist(), strict=True)
    )


def test_totals_that_a_file_lacks_are_sums() -> None:
    """Torch before 1.11 wrote none: they count from 0."""
    events = events_of([(1, 8), (2, 4), (1, -8)])
    without = replace(events, allocated=np.full(3, TOTAL_UNKNOWN))

    continued, gaps = continued_totals(without)

    assert ([8, 12, 4], 0) == (continued.allocated.tolist(), gaps)


# Peaks, and what was alive at them.


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


# Kinds of blocks, by how long they live.


def kinds(path: Path) -> dict[int, str]:
    device = only_device(path)
    return dict(zip(device.blocks.bytes.tolist(), map(KIND_LABELS.__getitem__, device.kind.tolist()), strict=True))


def test_kinds_follow_from_birth_and_death(tmp_path: Path) -> None:
    """A step's blocks, told apart by their sizes."""
    assert {
        40: "activations",
        8: "temporary",
        100: "gradients",
        16: "communication buffers",
        200: "optimizer state",
    } == kinds(training_file().write(tmp_path / "a.json"))


@pytest.mark.parametrize(("freed_at", "kind"), [(None, "other"), (250, "other"), (150, "activations")])
def test_what_outlives_two_steps_is_no_activation(tmp_path: Path, freed_at: float | None, kind: str) -> None:
    """A workspace that the first forward creates and keeps is not counted as an activation."""
    file = training_file()
    file.label("ProfilerStep#2", 200, 300)
    file.memory(11, 3, 66, allocated=1003, device=0).memory(299, 1, 67, allocated=1, device=0)
    if freed_at is not None:
        file.memory(freed_at, -3, 66, allocated=1000, device=0)

    assert kind == kinds(file.write(tmp_path / "a.json"))[3]


def test_without_an_optimizers_label_no_gradient_is_guessed(tmp_path: Path) -> None:
    """Nothing shows then which blocks of backward are gradients: they are of unknown kind."""
    file = KinetoFile().label("ProfilerStep#0", 0, 100).op("aten::mm", 10, 20)
    file.op("autograd::engine::evaluate_function: MmBackward0", 30, 60).memory(40, 100, 1, 100)

    assert {100: "other"} == kinds(file.write(tmp_path / "a.json"))


def test_gradients_are_those_that_the_recorder_counted() -> None:
    """Of each step of a real training, bytes and number equal what the tensors themselves had (run.json)."""
    counted = json.loads((GOLDEN / "run.json").read_text())["ranks"][0]["memory"]["gradients_bytes"]
    device = only_device(GOLDEN / "rank0.pt.trace.json.gz")
    own = device.kind == MemoryKind.GRADIENT
    step = device.origins.step[device.blocks.born[own]]

    assert [counted] * 2 == [int(device.blocks.bytes[own][step == k].sum()) for k in range(2)]
    assert 16 == int(own.sum())


# What surrounds an allocation: operator, module or label, phase, step.


def test_an_allocation_has_the_operator_the_label_the_phase_and_the_step_around_it(tmp_path: Path) -> None:
    """The outermost operator, not aten::mm inside of it; in backward the autograd function, not the engine's event."""
    use = use_of(training_file().write(tmp_path / "a.json"))
    [device] = use.devices

    found = [
        (
            size,
            *(use.names[i] if i != NOWHERE else "" for i in (operator, module)),
            Phase(phase).name,
            use.steps[step],
        )
        for size, operator, module, phase, step in zip(
            device.events.bytes.tolist(),
            device.origins.operator.tolist(),
            device.origins.module.tolist(),
            device.origins.phase.tolist(),
            device.origins.step.tolist(),
            strict=True,
        )
    ]

    assert (40, "aten::linear", "layers.0", "FORWARD", "ProfilerStep#0") == found[0]
    assert (100, "MmBackward0", "", "BACKWARD", "ProfilerStep#0") == found[3]
    assert (200, "", "Optimizer.step#AdamW.step", "OPTIMIZER", "ProfilerStep#0") == found[7]
    assert [(-100, "", "", "FORWARD", "ProfilerStep#1")] == found[8:9]


def test_a_module_comes_before_a_label(tmp_path: Path) -> None:
    """With with_stack=True the innermost nn.Module is named; other Python functions are not."""
    file = KinetoFile().op("aten::linear", 20, 40).label("mine", 5, 90)
    file.event("python_function", "nn.Module: Block_0", 10, 60).event("python_function", "nn.Module: Linear_1", 15, 45)
    file.event("python_function", "train.py(3): f", 16, 44).memory(25, 8, 1, 8)
    use = use_of(file.write(tmp_path / "a.json"))

    assert "nn.Module: Linear_1" == use.names[int(use.devices[0].origins.module[0])]


def test_a_loop_without_step_marks_is_one_step(tmp_path: Path) -> None:
    """Its events are in the window of the whole trace."""
    use = use_of(KinetoFile().op("aten::add", 10, 20).memory(15, 8, 1, 8).write(tmp_path / "a.json"))

    assert ("whole trace",) == use.steps
    assert [0] == use.devices[0].origins.step.tolist()


# A rank's memory from its file: devices, calls of the allocator, failures.


def test_a_failed_allocation_changes_no_total(tmp_path: Path) -> None:
    """It is kept apart from the events of the device."""
    file = training_file()
    file.memory(20, 1 << 40, 0, 1040, device=0, name="[OutOfMemory]")
    use = use_of(file.write(tmp_path / "a.json"))

    assert [1 << 40] == use.failed.bytes.tolist()
    assert 0 == use.devices[0].gaps


# Totals against torch's own counters.


SCRIPT = """
import json, sys
import torch
from torch.profiler import ProfilerActivity, profile
from torch.profiler._memory_profiler import MemoryProfileTimeline

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters())
settings = dict(profile_memory=True, record_shapes=True, with_stack=True)
with profile(activities=[ProfilerActivity.CPU], **settings) as profiler:
    for _ in range(3):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(torch.randn(64, 16)), torch.randint(0, 4, (64,)))
        loss.backward()
        optimizer.step()
        profiler.step()
profiler.export_chrome_trace(sys.argv[1])
memory = profiler._memory_profile()
_, sizes = MemoryProfileTimeline(memory)._coalesce_timeline("cpu")
found = {"peak": max(map(sum, sizes)), "PREEXISTING": 0, "GRADIENT": [0, 0], "OPTIMIZER_STATE": [0, 0]}
for _, action, (key, version), size in memory.timeline:
    category = memory._categories.get(key, version)
    if action.name == "PREEXISTING":
        found["PREEXISTING"] += size
    elif action.name == "CREATE" and category is not None and category.name in found:
        found[category.name][0] += size
        found[category.name][1] += 1
print(json.dumps(found))
"""


@pytest.mark.spawn
@pytest.mark.heavy
def test_peak_gradients_and_optimizer_state_equal_torchs(tmp_path: Path) -> None:
    """Three steps with AdamW on a CPU. Torch counts what was there before as well, which a trace does not know."""
    (tmp_path / "train.py").write_text(SCRIPT)
    done = run_python("train.py", "trace.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    torch = json.loads(done.stdout.splitlines()[-1])
    device = only_device(tmp_path / "trace.json")

    assert torch["peak"] == int(device.events.allocated.max()) + torch["PREEXISTING"]
    for kind in (MemoryKind.GRADIENT, MemoryKind.OPTIMIZER_STATE):
        own = device.blocks.bytes[device.kind == kind]
        assert torch[kind.name] == [int(own.sum()), len(own)]
        assert len(own) == 12
