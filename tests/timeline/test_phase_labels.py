"""Labels that say a phase: the table, the user's own, and what is said where they contradict the launches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import dptrace
from dptrace.commands.shared.main import cli
from dptrace.errors import UsageError
from dptrace.timeline.model import Phase
from dptrace.timeline.phase_labels import LABELS, UNLABELED, _known
from tests.support.kineto_files import KinetoFile

PHASES = [phase.name.lower() for phase in Phase]
NODE = "autograd::engine::evaluate_function: MmBackward0"


def test_the_table_knows_the_labels_of_schedules() -> None:
    """As torch, Megatron, DualPipe and zero bubble write them; a label of two phases says neither."""
    for phase, labels in (
        (
            Phase.FORWARD,
            ("PP:0F1", "Forward 3", "attn(F)", "dispatch(F)", "mlp forward", "layer_3f", "forward-compute"),
        ),
        (Phase.BACKWARD, ("PP:0B1", "PP:12W3", "PP:1I0", "PP:(0B0;1W0)", "PP:0REDUCE_GRAD", "Backward 0")),
        (Phase.BACKWARD, ("mlp(B)", "attn(W)", "moe_dispatch backward", "mlp wgrad", "layer_0b", "backward-compute")),
        (Phase.BACKWARD, ("B1.0.0", "W12.1.0", "W_clear.0.1")),
        (Phase.FORWARD, ("F1.0.0",)),
        (UNLABELED, ("PP:(3F1;0B0)OVERLAP_F_B", "PP:0SEND_B1", "PP:1UNSHARD", "layer_0f-layer_3b", "1F1B", "F1")),
        (UNLABELED, ("## backward ##", "loss(mean)", "Forward pass 1", "aten::mm", "(W) notes", "ProfilerStep#4")),
    ):
        assert dict.fromkeys(labels, phase) == {label: _known(label) for label in labels}


def test_each_line_names_where_its_labels_come_from() -> None:
    """A repository and a path in it."""
    assert [] == [line.pattern for line in LABELS if not ("/" in line.source.split()[0] and "." in line.source)]


def split_backward(folder: Path, *names: str) -> Path:
    """Write 100 µs of forward, 60 of backward by a node, 100 and 40 below two labels, and 40 of clipping."""
    file = KinetoFile().label("ProfilerStep#1", 0, 1000).label(names[0], 10, 20).kernel("f", 100, 200, 15)
    file.op(NODE, 30, 60, 2).kernel("b", 200, 260, 40, 2).label(names[1], 50, 58).kernel("dgrad", 260, 360, 55)
    file.label(names[2], 70, 80).kernel("wgrad", 360, 400, 75).kernel("clip", 400, 440, 90)
    return file.write(folder / "rank0.json")


def shares(path: Path, *phase_labels: str) -> list[int]:
    """Return µs of forward, backward, optimizer and other."""
    total = dptrace.open(path, phase_labels=phase_labels).totals().iloc[0]
    return [int(total[f"{phase.name.lower()}_ns"]) // 1000 for phase in Phase]


@pytest.mark.heavy
def test_the_split_returns_the_planted_shares(tmp_path: Path) -> None:
    """Labels of the table decide, the user's come first, and one read does not answer for another."""
    known = split_backward(tmp_path, "attn(F)", "mlp(B)", "mlp(W)")
    assert [100, 200, 0, 40] == shares(known)
    assert [100, 160, 0, 80] == shares(known, r"\(w\)$=other")
    assert [100, 200, 0, 40] == shares(known)

    unknown = split_backward(tmp_path, "stage0.fwd", "stage0.bwd", "stage0.later")
    assert [200, 60, 0, 80] == shares(unknown)
    assert [200, 60, 40, 40] == shares(unknown, "later=optimizer")
    assert [100, 200, 0, 40] == shares(unknown, "stage0.bwd=backward", "stage0.later=backward")
    assert [100, 160, 40, 40] == shares(unknown, "later=optimizer", "bwd|later=backward")
    assert [240, 60, 0, 40] == shares(unknown, "later=forward", "later=other")


def notes(path: Path, *phase_labels: str) -> list[str]:
    return [note for note in dptrace.open(path, phase_labels=phase_labels).notes if "label" in note]


def test_notes_say_where_labels_and_launches_contradict_each_other(tmp_path: Path) -> None:
    """Labels that are known decide, those with a telling name do not; a rule that fits no label may be misspelled."""
    known = split_backward(tmp_path, "attn(F)", "mlp(B)", "mlp(W)")
    (note,) = notes(known)
    for words in ("rank0.json: 41 % of compute", "(mlp(B), mlp(W))", "forward or other"):
        assert words in note

    unknown = split_backward(tmp_path, "stage0.fwd", "stage0.bwd", "stage0.later")
    (note,) = notes(unknown)
    for words in ("29 % of compute", "(stage0.bwd)", "--phase-labels 'REGEX=backward'"):
        assert words in note
    (note,) = notes(unknown, "bwd=backward", "lader=backward")[1:]
    assert "'lader' fits no label" in note
    assert [] == notes(split_backward(tmp_path, "a", "b", "c"))


def test_a_small_contradiction_is_not_worth_a_note(tmp_path: Path) -> None:
    """Under 5 % of compute, as of a gradient's first ones in the loop's own label."""
    file = KinetoFile().label("ProfilerStep#1", 0, 1000).op(NODE, 30, 60, 2).kernel("b", 200, 300, 40, 2)
    file.label("backward pass", 20, 62).kernel("ones", 100, 104, 25)

    assert [] == notes(file.write(tmp_path / "rank0.json"))


def test_a_rule_that_is_none_is_refused_before_anything_is_read() -> None:
    """With exit code 2, and as an error of the Python call."""
    for rule, message in (
        ("mlp", "a phase: forward, backward, optimizer, other"),
        ("mlp=backwards", "a phase: forward, backward, optimizer, other"),
        ("(=backward", "not a regular expression"),
        ("x*=backward", "empty name"),
        ("=backward", "empty name"),
    ):
        result = CliRunner().invoke(cli, ["analyze", "gone.json", "--phase-labels", rule])
        assert (2, True) == (result.exit_code, message in " ".join(result.stderr.split()))
        with pytest.raises(UsageError, match=message):
            dptrace.open("gone.json", phase_labels=rule)


@pytest.mark.heavy
def test_a_verb_and_a_second_reading_take_rules(tmp_path: Path) -> None:
    """They reach the split of ``dptrace analyze``, and the phase of memory, which is read and cached on its own."""
    file = KinetoFile().label("ProfilerStep#1", 0, 100).label("later", 10, 20).kernel("wgrad", 20, 60, 15)
    path = str(file.memory(12, 64, 1, allocated=64).op(NODE, 70, 80, 2).write(tmp_path / "rank0.json"))
    for rule, phase in (("later=backward", "backward"), ("later=other", "other")):
        result = CliRunner().invoke(cli, ["analyze", path, "--json", "--phase-labels", rule])

        assert 40_000 == json.loads(result.stdout)["mean_step"][f"{phase}_ns"]
        assert phase in set(dptrace.open(path, phase_labels=rule).memory()["phase"])


@pytest.mark.heavy
def test_a_graph_of_which_nothing_tells_the_phase_is_other(tmp_path: Path) -> None:
    """It may hold backward, too: a note gives its share of compute. What encloses the launch tells, as a label does."""
    for around, phase in (
        (None, "other"),
        (("label", "decode"), "other"),
        (("label", "forward-compute"), "forward"),
        (("label", "dptrace::backward"), "backward"),
        (("op", "CompiledFxGraph"), "forward"),
        (("label", "Optimizer.step#SGD.step"), "optimizer"),
    ):
        file = KinetoFile().label("ProfilerStep#1", 0, 1000).op("aten::add", 2, 8).kernel("add", 100, 120, 4)
        if around:
            getattr(file, around[0])(around[1], 10, 30)
        file.event("cuda_runtime", "cudaGraphLaunch", 15, 25, correlation=900)
        for start in (200, 250):
            file.kernel("graphed", start, start + 40, None).events[-1]["args"]["correlation"] = 900
        path = file.write(tmp_path / "rank0.json")
        assert [20 * (name == "forward") + 80 * (name == phase) for name in PHASES] == shares(path)
        noted = [note for note in dptrace.open(path).notes if "80 % of compute is replayed by CUDA graphs" in note]
        assert (phase == "other") == bool(noted)
        if around == ("label", "decode"):
            assert [100, 0, 0, 0] == shares(path, "decode=forward")


def test_a_graph_in_a_run_with_backward_counts_by_order(tmp_path: Path) -> None:
    """One that is launched before the step's backward is forward; nothing is to be noted."""
    file = KinetoFile().label("ProfilerStep#1", 0, 1000).op(NODE, 30, 60, 2).kernel("b", 200, 260, 40, 2)
    file.event("cuda_runtime", "cudaGraphLaunch", 15, 25, correlation=900)
    file.kernel("graphed", 100, 140, None).events[-1]["args"]["correlation"] = 900
    path = file.write(tmp_path / "rank0.json")

    assert [40, 60, 0, 0] == shares(path)
    assert not [note for note in dptrace.open(path).notes if "graph" in note]
