"""Who was late, from files whose truth is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dptrace.watch.account import Merger
from dptrace.watch.records import CORE_WAIT_BITS
from tests.support.watch_records import Job, Plant, summarized

MODES = ("ddp", "naive", "sharded", "asynchronous", "tensor-data", "pipeline")
STEPS = 64


def answer(folder: Path, mode: str, *plants: Plant, ranks: int = 4, hosts: int = 1, seed: int = 7) -> dict[str, Any]:
    job = Job(mode, ranks, plants, seed, hosts).run(STEPS)
    return summarized(job.write(folder))


@pytest.mark.parametrize("mode", MODES)
def test_without_a_delay_nobody_is_suspect(mode: str, tmp_path: Path) -> None:
    """Noise of 3 % in each stage is no cause."""
    found = answer(tmp_path, mode)

    assert [] == found["suspects"]
    assert found["cannot_tell"] is None


@pytest.mark.parametrize(
    ("mode", "plant"),
    [
        *((mode, Plant(2, "backward", 12.0)) for mode in MODES),
        *((mode, Plant(1, "forward", 40.0, "tenth")) for mode in MODES),
        # A small one stands out of the noise: 1.2 ms of a step of 28 ms.
        *((mode, Plant(1, "forward", 1.2)) for mode in ("ddp", "naive", "sharded")),
        # After the last collective, it shows in the others' backward of the next step.
        *(("ddp", Plant(3, stage, 15.0)) for stage in ("data", "optimizer", "other")),
        # The partner of a slow rank arrives late in its data group.
        ("tensor-data", Plant(1, "forward", 20.0)),
    ],
)
def test_the_rank_and_the_stage_of_a_delay_are_named(mode: str, plant: Plant, tmp_path: Path) -> None:
    """The only suspect is the planted one, with its ms per step."""
    (only,) = answer(tmp_path, mode, plant)["suspects"]

    assert (plant.rank, plant.stage) == (only["rank"], only["stage"])
    planted = plant.ms if plant.when == "steady" else plant.ms * 6 / 60
    assert planted == pytest.approx(only["ns_per_step"] / 1e6, rel=0.1 if plant.ms > 2 else 0.15)


def test_clocks_of_machines_far_apart_change_nothing(tmp_path: Path) -> None:
    """Clocks 20 minutes off that drift by 20 ppm are aligned by the ends of collectives."""
    near = answer(tmp_path / "near", "ddp", Plant(2, "forward", 12.0))
    far = answer(tmp_path / "far", "ddp", Plant(2, "forward", 12.0), hosts=2)

    assert near["suspects"][0]["ns_per_step"] == pytest.approx(far["suspects"][0]["ns_per_step"], rel=0.02)
    assert 2 == far["hosts"]


def test_when_a_delay_began_and_ended(tmp_path: Path) -> None:
    """A delay in the steps 30 to 54 is found there, within two steps."""
    (first,) = answer(tmp_path, "ddp", Plant(2, "forward", 30.0, (30, 55)))["suspects"]

    assert abs(first["first_step"] - 30) <= 2
    assert abs(first["last_step"] - 54) <= 2
    assert 25 / (STEPS - 4) == pytest.approx(first["share_of_steps"], abs=0.02)


def test_a_cause_that_moves_has_no_rank(tmp_path: Path) -> None:
    """The same stage of one rank after the other is one suspect."""
    (first,) = answer(tmp_path, "ddp", Plant(None, "data", 20.0))["suspects"]

    assert (None, "data", "moving") == (first["rank"], first["stage"], first["scope"])


def test_two_late_ranks_are_both_named_and_the_second_gains_nothing_alone(tmp_path: Path) -> None:
    """Of delays of 15 and 30 ms, only the rank that comes last could save anything by itself."""
    plants = Plant(1, "forward", 15.0), Plant(3, "forward", 30.0)
    first, second = answer(tmp_path, "ddp", *plants)["suspects"]

    assert [3, 1] == [first["rank"], second["rank"]]
    assert 15 == pytest.approx(first["gain_alone_ns"] / 1e6, rel=0.1)
    assert 0 == pytest.approx(second["gain_alone_ns"] / 1e6, abs=0.2)


def test_all_ranks_slower_is_a_change_without_suspects(tmp_path: Path) -> None:
    """Nobody is late if all are; the step from which on steps are longer is named with the stage."""
    plants = [Plant(rank, "data", 12.0, (40, 999)) for rank in range(4)]
    found = answer(tmp_path, "ddp", *plants)

    assert [] == found["suspects"]
    assert abs(found["change"]["first_step"] - 40) <= 2
    assert ("data", 12) == (
        found["change"]["stage"],
        round((found["change"]["after_ns"] - found["change"]["before_ns"]) / 1e6),
    )


def test_the_ranks_of_one_machine_are_a_node(tmp_path: Path) -> None:
    """If all ranks of a machine are late and others are not, the machine is what they share."""
    plants = [Plant(rank, "forward", 20.0) for rank in (4, 5)]
    found = answer(tmp_path, "ddp", *plants, ranks=6, hosts=3)["suspects"]

    assert {(4, "node"), (5, "node")} == {(row["rank"], row["scope"]) for row in found}


def test_exposed_times_of_the_stages_add_up_to_the_step(tmp_path: Path) -> None:
    """The frontier divides the longest rank's step, without a rest."""
    Job("ddp", 4, [Plant(2, "forward", 12.0)]).run(20).write(tmp_path)
    merger = Merger(tmp_path)
    merger.look()
    (batch,) = merger.batches()
    exposed = batch.frontier()

    np.testing.assert_allclose(exposed.sum(1), batch.length.max(0), rtol=1e-9)


@pytest.mark.parametrize(("others", "own", "named"), [(50, 50, True), (999, 999, True), (50, 999, False)])
def test_lateness_that_waiting_for_cores_explains_accuses_nobody(
    others: int, own: int, named: bool, tmp_path: Path
) -> None:
    """A steady delay counts however long all ranks wait for cores; not if its rank waits longer for one than others."""
    job = Job("ddp", 4, [Plant(2, "backward", 12.0)], 7)
    for rank in job.ranks:
        rank.flags = (own if rank.number == 2 else others) << CORE_WAIT_BITS
    found = summarized(job.run(STEPS).write(tmp_path))

    assert named == bool(found["suspects"])
    assert named == (found["cannot_tell"] is None)
    assert own / 1000 * 40e6 == pytest.approx(found["core_wait_ns"], rel=0.15)


def test_jitter_of_ranks_that_wait_for_cores_is_no_cause(tmp_path: Path) -> None:
    """Delays of 12 ms that now this rank has and now that, in two of five steps, as where cores are shared."""
    job = Job("ddp", 4, [Plant(None, "backward", 12.0, (start, start + 2)) for start in range(0, STEPS, 5)], 7)
    for rank in job.ranks:
        rank.flags = 500 << CORE_WAIT_BITS
    found = summarized(job.run(STEPS).write(tmp_path))

    assert [] == found["suspects"]
    assert "waited" in found["cannot_tell"]


def test_without_collectives_it_cannot_tell(tmp_path: Path) -> None:
    """Where no call was seen, who is late is unknown, and not nobody."""
    job = Job("ddp", 2).run(20)
    for rank in job.ranks:
        rank.calls.clear()
    found = summarized(job.write(tmp_path))

    assert "no collective was seen" in found["cannot_tell"]


def test_files_that_grow_give_the_same_as_whole_ones(tmp_path: Path) -> None:
    """Reading while ranks write, with half a record at an end, changes no figure."""
    from dptrace.watch.follow import Follower

    job = Job("naive", 3, [Plant(1, "forward", 9.0)]).run(60)
    whole = summarized(job.write(tmp_path / "whole"))
    job.write(tmp_path / "growing")
    contents = {path: path.read_bytes() for path in (tmp_path / "growing").glob("rank*.*s")}
    follower = Follower(tmp_path / "growing")
    for part in range(1, 8):
        for path, content in contents.items():
            path.write_bytes(content[: 4096 + (len(content) - 4096) * part // 7])
        follower.poll()

    grown = follower.summary()
    assert whole["steps"] == grown["steps"]
    assert whole["suspects"] == grown["suspects"]
