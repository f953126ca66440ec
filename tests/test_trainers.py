"""The trainers: each records, and each ends with the parameters of training on one GPU."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dptrace.record.modes import MODES, trainer
from tests.recordings import STEPS, WAIT, WARMUP, parameters_of, recorded

torch = pytest.importorskip("torch")

RANKS = {"single": 1, "naive": 2, "interleaved": 2, "ddp": 2}


@pytest.mark.parametrize(
    ("model", "parameters", "millions"),
    [("small", 1_462_538, 1.5), ("medium", 8_432_138, 8.4), ("large", 35_211_786, 35.2), ("xlarge", 51_993_098, 52.0)],
)
def test_the_models_have_the_sizes_that_their_help_tells(model: str, parameters: int, millions: float) -> None:
    """The four MLPs have 1.5, 8.4, 35.2 and 52.0 million parameters."""
    from dptrace.record import Options, World
    from dptrace.trainers import mlp

    # On the meta device, so that 52 million numbers need no memory.
    with torch.device("meta"):
        built = mlp.build(Options(model=model, seed=1, dtype="float32"), World(0, 1, torch.device("meta")))

    count = sum(parameter.numel() for parameter in built.parameters())
    assert parameters == count
    assert millions == round(count / 1e6, 1)


def test_every_rank_gets_its_own_shard_of_the_same_batch() -> None:
    """The shards of all ranks, one after the other, are the batch of a single process, and batches differ."""
    from dptrace.record import Options, World
    from dptrace.trainers import mlp

    options, cpu = Options(model="small", seed=7, dtype="float32", batch_size=12), torch.device("cpu")
    (whole, classes), (second, _) = mlp.batches(options, World(0, 1, cpu), 2)
    shards = [next(mlp.batches(options, World(rank, 3, cpu), 1)) for rank in range(3)]

    assert torch.equal(whole, torch.cat([x for x, _ in shards]))
    assert torch.equal(classes, torch.cat([y for _, y in shards]))
    assert not torch.equal(whole, second)
    assert whole.shape == (12, 784)


def test_modes_and_files_are_the_same() -> None:
    """Every mode has its trainer, and every trainer is a mode."""
    files = {path.stem for path in trainer("single").parent.glob("*.py")}

    assert files - {"__init__", "mlp"} == set(MODES)


def test_no_trainer_hides_a_module_of_the_standard_library() -> None:
    """torchrun puts the trainer's folder first on the path: a trace.py in it would break torch's own imports."""
    names = {path.stem for path in trainer("single").parent.glob("*.py")}

    assert not names & set(sys.stdlib_module_names)


@pytest.mark.processes
@pytest.mark.parametrize("mode", MODES)
def test_each_mode_records_a_trace_for_each_rank(mode: str) -> None:
    """The traces hold the recorded steps, the phase marks, and communication where there are several ranks."""
    run, ranks = recorded(mode, RANKS[mode]), RANKS[mode]

    assert {"run.json", *(f"rank{rank}.pt.trace.json.gz" for rank in range(ranks))} == {p.name for p in run.iterdir()}
    for rank in range(ranks):
        names = [event["name"] for event in _events(run / f"rank{rank}.pt.trace.json.gz")]
        steps = [name for name in names if name.startswith("ProfilerStep")]
        assert [f"ProfilerStep#{WAIT + WARMUP + step}" for step in range(STEPS)] == steps
        for phase in ("forward", "backward", "optimizer"):
            assert STEPS == names.count(f"dptrace::{phase}")
        assert (ranks > 1) == ("gloo:all_reduce" in names)


def _events(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path) as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    return sorted(events, key=lambda event: float(event["ts"]))


@pytest.mark.processes
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "single"])
def test_each_mode_ends_with_the_parameters_of_a_single_process(mode: str, ranks: int) -> None:
    """Data parallelism changes how the gradient of the batch is computed, and not what it is."""
    single = np.load(parameters_of(recorded("single", 1)))
    parallel = np.load(parameters_of(recorded(mode, ranks)))

    assert sorted(single.files) == sorted(parallel.files)
    for name in single.files:
        np.testing.assert_allclose(parallel[name], single[name], rtol=1e-4, atol=1e-6)


@pytest.mark.processes
def test_training_moves_the_parameters() -> None:
    """The comparison above would hold as well if nothing was trained."""
    from dptrace.record import Options, World
    from dptrace.trainers import mlp

    cpu = torch.device("cpu")
    fresh = next(mlp.build(Options(model="small", seed=42, dtype="float32"), World(0, 1, cpu)).parameters())
    trained = np.load(parameters_of(recorded("single", 1)))["p0"]

    assert np.abs(trained - fresh.detach().numpy()).max() > 1e-4


@pytest.mark.processes
@pytest.mark.parametrize("mode", [mode for mode in MODES if mode != "single"])
def test_the_loss_is_that_of_the_whole_batch(mode: str) -> None:
    """Averaged over ranks, the losses of all modes are those of a single process."""
    single = json.loads((recorded("single", 1) / "run.json").read_text())
    parallel = json.loads((recorded(mode, 2) / "run.json").read_text())

    assert WAIT + WARMUP + STEPS == len(single["losses"])
    assert pytest.approx(single["losses"], rel=1e-5) == parallel["losses"]


@pytest.mark.parametrize(("chosen", "handed"), [(None, {}), (4.0, {"bucket_cap_mb": 4.0})])
def test_ddp_is_told_of_buckets_only_where_the_user_chose(
    chosen: float | None, handed: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older torch has a number for its default, and takes no None."""
    from dptrace.record import Options, World
    from dptrace.trainers import ddp

    class Built(Exception):
        pass

    def build(model: object, **settings: float) -> None:
        raise Built(settings)

    monkeypatch.setattr(ddp, "DistributedDataParallel", build)
    options = Options(model="small", seed=1, dtype="float32", bucket_cap_mb=chosen)
    with pytest.raises(Built) as told:
        ddp.train(options, World(0, 1, torch.device("cpu")))

    assert (handed,) == told.value.args
