"""What surrounds an allocation: operator, module or label, phase, step."""

from __future__ import annotations

from pathlib import Path

from dptrace.analysis.memory.usage import NOWHERE
from dptrace.timeline.model import Phase
from tests.support.kineto_files import KinetoFile
from tests.support.memory_files import training_file, use_of


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
