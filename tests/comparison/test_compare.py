"""Comparisons of runs whose differences are known, and limits on them for continuous integration."""

from __future__ import annotations

import dataclasses
import json
import re
from functools import cache
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

import dptrace
from dptrace.analysis.per_gpu.split import FIGURES
from dptrace.comparison.changes import FIGURE_NAMES, PARTS
from dptrace.comparison.compare import Comparison, compare
from dptrace.comparison.limits import GRAMMAR, parse
from dptrace.core.units import MINUS
from dptrace.errors import UsageError
from dptrace.load.open import open_run
from dptrace.load.options import ReadOptions
from dptrace.run.run import Run
from dptrace.viewers.pages.ci import junit_xml, markdown
from dptrace.viewers.terminal.comparison import print_comparison
from tests.support import programs
from tests.support.builders import TimelineBuilder
from tests.support.evidence import REMOVALS, read
from tests.support.jobs import job, run_of
from tests.support.planted import Plant, planted_job
from tests.support.programs import gpipe, one_forward_one_backward, pipeline, write
from tests.support.real_traces import needs_real_traces, real

TRACES = Path(__file__).resolve().parents[2] / "traces"


@cache
def recorded(name: str) -> Run:
    return open_run([str(TRACES / name)])


def named(found: Comparison) -> dict[str, float]:
    """Return the changes beyond noise, in percent of A."""
    return {change.name: change.delta_percent or 0 for change in found.changes if change.beyond}


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["naive_cpu_2ranks", "single_cpu"])
def test_a_run_against_itself(name: str) -> None:
    """Nothing differs, whatever its noise."""
    found = compare(recorded(name), recorded(name))

    assert "No difference beyond noise: every figure is the same to the nanosecond." == found.summary()
    assert {"same"} == {change.verdict for change in found.changes}
    assert {0} == {row.time.delta for row in found.kernel_changes}
    assert () == found.differences
    assert not any("One recording per side" in text for text in found.notes)


@pytest.mark.heavy
def test_the_same_time_is_listed_once() -> None:
    """Exposed communication that B lacks contains its transfers and waits; the table still has them."""
    found = compare(recorded("naive_cpu_2ranks"), recorded("single_cpu"))
    moved = {change.name for change in (*found.changes, *found.wait_and_transfer) if change.beyond}

    assert {"exposed_comm_ns", "transfer_ns", "wait_ns"} <= moved
    assert "exposed communication" in found.summary()
    assert not any(words in found.summary() for words in ("transfer", "wait for ranks"))


@pytest.mark.heavy
def test_other_sizes_of_buckets_are_no_gain_and_no_loss() -> None:
    """What one bucket of A became in B is in the table; the headline has only sums."""
    found = compare(recorded("ddp_cpu_2ranks"), recorded("ddp_4mb_cpu_2ranks"))

    assert any(row.transfer and row.transfer.beyond for row in found.collective_changes)
    assert "all_reduce" not in found.summary()


@pytest.mark.heavy
def test_naive_against_interleaved() -> None:
    """Communication that only B overlaps is named; four noisy steps cannot tell the rest."""
    found = compare(recorded("naive_cpu_2ranks"), recorded("interleaved_cpu_2ranks"))

    assert {"overlapped_comm_ns"} == set(named(found))
    assert found.change("overlapped_comm_ns").delta > 20e6
    assert "cannot tell" == found.change("wall_ns").verdict
    assert "overlapped communication +29.8 ms" in found.summary()
    assert ("Mode: A naive, B interleaved.",) == found.differences


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(3))
def test_a_longer_backward_and_nothing_else(seed: int) -> None:
    """Each backward kernel 10 % longer: backward +10 %, and the wall by as much."""
    found = compare(job(seed=seed), job(seed=seed + 10, factors={"backward": 1.1}))
    moved = named(found)

    assert {"backward_ns", "wall_ns"} == set(moved)
    assert moved["backward_ns"] == pytest.approx(10, abs=1)
    assert {"gemm_backward", "relu"} == {row.time.name for row in found.kernel_changes if row.time.beyond}
    assert "slower per step: backward +" in found.summary()
    assert "forward" not in found.summary()


@pytest.mark.heavy
def test_three_steps_show_a_change_of_many_times_their_spread() -> None:
    """With three steps of 0.5 % noise, a backward that is a tenth longer is told, one of 1 % is not; with two, none."""
    found = compare(job(steps=3), job(steps=3, seed=1, factors={"backward": 1.1}))
    little = compare(job(steps=3), job(steps=3, seed=1, factors={"backward": 1.01}))
    few = compare(job(steps=2), job(steps=2, seed=1, factors={"backward": 1.1}))

    assert {"backward_ns", "wall_ns"} == set(named(found))
    assert "slower per step: backward +" in found.summary()
    assert found.check("backward > +5%").failed
    assert {} == named(little) == named(few)

    assert "cannot tell" == few.change("backward_ns").verdict
    assert few.summary().startswith("Cannot tell: 2 steps per run are too few; B's median step was ")
    assert few.summary().endswith(" longer.")
    assert not any(word in few.summary() for word in ("slower", "backward"))
    assert "2 steps per run are too few" in few.check("backward > +5%").text
    shorter = compare(job(steps=1, factors={"backward": 2}), job(steps=1))
    assert shorter.summary().startswith("Cannot tell: 1 step per run is too few; ")
    assert shorter.summary().endswith(" shorter.")
    assert "3 and 2 steps" == compare(job(steps=3), job(steps=2)).too_few_steps


@pytest.mark.heavy
@needs_real_traces
def test_a_second_asleep_in_each_of_three_steps_is_told() -> None:
    """A recommender whose rank 2 sleeps, against one that does not, and whose steps differ by a factor of three."""
    found = compare(open_run([real("straggler_v100_4ranks")]), open_run([real("dlrm_v100_4ranks")]))

    assert found.change("wall_ns").beyond
    assert "faster per step: rank 2's host was late −971 ms" in found.summary()
    assert "cannot tell" == found.change("allocator_ns").verdict
    assert (3, 3) == (len(found.a.steps), len(found.b.steps))


@pytest.mark.heavy
def test_a_slow_first_step_is_no_difference() -> None:
    """It is left out, and a note names it with its length."""
    found = compare(job(steps=8), job(steps=8, seed=1, first=3))

    assert {} == named(found)
    assert any(note.startswith("B: ") and "ProfilerStep#4 (" in note for note in found.notes)
    kept = compare(job(steps=8), job(steps=8, seed=1, first=3), every_step=True)
    assert kept.change("wall_ns").b > 1.2 * found.change("wall_ns").b


@pytest.mark.heavy
def test_runs_of_different_sizes_are_compared_rank_for_rank_on_average() -> None:
    """The ranks in both runs are also compared one by one."""
    found = compare(job(ranks=2), job(ranks=4, seed=1))

    assert found.change("wall_ns").delta_percent == pytest.approx(0, abs=1)
    assert [(0, 0), (1, 0)] == [place for place, _ in found.by_rank]
    assert "A had 2 ranks, B 4" in found.differences[0]


@pytest.mark.heavy
def test_ranks_that_one_run_lacks_are_left_out_of_the_other() -> None:
    """A straggler that has a trace in one run only does not count as a change."""
    b = job(ranks=4, seed=1)
    found = compare(job(ranks=4), dataclasses.replace(b, timelines=b.timelines[1:], devices=()))

    assert ((1, 0), (2, 0), (3, 0)) == found.a.device_ids == found.b.device_ids
    assert "3 of 4 ranks" in found.differences[0]


@pytest.mark.heavy
def test_the_dictionary_holds_everything_as_json() -> None:
    """The schema of the documentation; parts add up in it."""
    data = json.loads(json.dumps(compare(job(), job(seed=1, factors={"backward": 1.1})).to_dict(), allow_nan=False))
    rows = {row["figure"]: row for row in data["figures"]}

    names = (
        "schema summary a b before after differs figures overlap mfu wait_and_transfer kinds ranks collectives kernels"
    )
    assert {*names.split(), "notes"} == set(data)
    assert (1, {0, 1}) == (data["schema"], {row["rank"] for row in data["ranks"]})
    assert rows["wall_ns"]["delta_ns"] == sum(rows[name]["delta_ns"] for name in PARTS)
    assert rows["backward_ns"]["delta_ns"] == rows["backward_ns"]["b_ns"] - rows["backward_ns"]["a_ns"]
    assert "beyond noise" == rows["backward_ns"]["verdict"]
    assert isinstance(data["overlap"]["a_percent"], float)


@pytest.mark.heavy
def test_frames_without_rows_have_their_columns() -> None:
    """A run without communication."""
    alone = compare(recorded("single_cpu"), recorded("single_cpu")).collectives()

    assert (0, "kind") == (len(alone), alone.columns[0])
    assert alone.columns.tolist() == compare(job(), job()).collectives().columns.tolist()


@pytest.mark.heavy
def test_a_run_opened_for_its_figures_has_no_kernels_to_compare() -> None:
    """All other changes are the same, and a note says that kernels are not compared."""
    thin = open_run([str(TRACES / "naive_cpu_2ranks")], ReadOptions(figures_only=True))
    found, full = (compare(run, recorded("interleaved_cpu_2ranks")) for run in (thin, recorded("naive_cpu_2ranks")))

    assert () == found.kernel_changes
    assert (full.changes, full.collective_changes) == (found.changes, found.collective_changes)
    assert any("Kernels are not compared" in note for note in found.notes)


# Limits for continuous integration.


@pytest.fixture(scope="module")
def slower() -> Comparison:
    """Backward 10 % longer: 6 ms, beyond noise."""
    return compare(job(), job(seed=1, factors={"backward": 1.1}))


@pytest.fixture(scope="module")
def few() -> Comparison:
    """The same with two steps: too few to decide."""
    return compare(job(steps=2), job(steps=2, seed=1, factors={"backward": 1.1}))


@pytest.mark.heavy
def test_limits(slower: Comparison) -> None:
    """Each form, with other spellings; the text begins with the limit as it was given."""
    failing = (
        "backward > +5%; backward_ns>+5 %; backward > +2ms; backward > +2000us; backward > 50ms; backward < 70 ms; "
        "backward > 50%; wall > +3%; step > +3%; wall > -5%; idle > 1ms; overlap < 60%; overlap > −1%"
    )
    kept = (
        "Backward > +15%; backward > +0.02s; backward > 70 ms; backward > 70%; backward < -1%; forward > +0.001%; "
        "exposed communication > +50%; data loading > 1ms; overlap < 10%; waiting > +5%"
    )
    for limits, failed in ((failing, True), (kept, False)):
        for text in limits.split("; "):
            crossing = parse(text).check(slower)
            assert (text, failed) == (text, crossing.failed)
            assert crossing.text.startswith(text)


@pytest.mark.heavy
def test_what_may_be_noise_does_not_fail_unless_asked(slower: Comparison, few: Comparison) -> None:
    """The message says that the limit is crossed, and why that does not count."""
    limit = parse("backward > +5%")
    crossing = limit.check(few)

    assert (True, False) == (crossing.crossed, crossing.failed)
    assert "2 steps per run are too few" in crossing.text
    assert limit.check(few, even_noise=True).failed
    hair = parse("forward > +0.0001%") if slower.change("forward_ns").delta > 0 else parse("forward < -0.0001%")
    assert "within noise" in hair.check(slower).text
    assert hair.check(slower, even_noise=True).failed


@pytest.mark.heavy
def test_a_gain_that_is_asked_for_and_not_had_fails(few: Comparison) -> None:
    """`wall > -5%` asks for a step at least 5 % shorter."""
    assert parse("wall > -5%").check(few).failed
    assert not parse("wall > -5%").check(compare(job(), job(factors={"backward": 0.5}))).failed


@pytest.mark.heavy
def test_from_nothing_to_something_is_beyond_any_percentage() -> None:
    """Exposed communication that A did not have."""
    found = compare(job(factors={"exposed": 0}), job(seed=1))

    assert parse("exposed_comm > +1000%").check(found).failed


def test_overlap_without_communication_is_kept() -> None:
    """And it is said why."""
    none = run_of([TimelineBuilder().compute(0, 100).build()])
    crossing = parse("overlap < 50%").check(compare(none, none))

    assert not crossing.failed
    assert "no communication" in crossing.text


def test_every_figure_has_its_names() -> None:
    """As in JSON, without its unit, and in words."""
    for name, words in FIGURE_NAMES.items():
        assert {name} == {parse(f"{word} > 1ms").figure for word in (name, name.removesuffix("_ns"), words)}


def test_what_is_no_limit_is_answered_with_the_grammar() -> None:
    """The message contains the grammar, or names what is wrong."""
    unread = ("", "backward", "backward > 5", "backward >= 5%", "backward > +5% > 3%", "__class__ > 5%")
    wrong = {
        "speed > 5%": "figure 'speed'",
        "wall > 5 minutes": "unit 'minutes'",
        "overlap > 5ms": "overlap is %",
        "wall > 5%": "did you mean > +5%?",
    }
    for text, words in {**dict.fromkeys(unread, GRAMMAR), **wrong}.items():
        with pytest.raises(UsageError) as caught:
            parse(text)
        assert words in str(caught.value)


def lacking(name: str, folder: Path) -> Run:
    """Return a recording of two GPUs from which a kind of evidence is taken."""
    for path in (TRACES / "ddp_h200_2ranks").glob("rank*.json.gz"):
        document = read(path)
        events = REMOVALS[name](document["traceEvents"])
        (folder / path.name.removesuffix(".gz")).write_text(json.dumps({**document, "traceEvents": events}))
    return open_run([str(folder)])


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["launches", "operators", "10 % of kernels", "ids of launches"])
def test_what_a_recording_lacks_is_not_compared(name: str, tmp_path: Path) -> None:
    """Neither it nor what is only a bound differs or decides which steps are alike; a note says why."""
    whole, part = recorded("ddp_h200_2ranks"), lacking(name, tmp_path)
    known = set(FIGURES) - {*part.splits[0].unknown}
    exact = {figure for figure in known if part.splits[0].bounds.get(figure) in (None, "about")} | {"wall_ns"}

    for found in (compare(whole, part), compare(part, whole), compare(part, part), compare([whole, part], job())):
        assert exact == {change.name for change in found.changes} & set(FIGURES)
        assert any("not compared, because" in note for note in found.notes)
        assert "optimizer" not in found.summary() or "optimizer_ns" in exact
        assert "every figure is" not in found.summary()
        printed = Console(width=80, file=StringIO())
        print_comparison(found, printed)
        json.dumps(found.to_dict())


@pytest.mark.heavy
def test_work_that_a_recording_lost_is_not_called_work_of_the_other(tmp_path: Path) -> None:
    """Kernels and collectives are compared only where both sides have all of theirs."""
    found = compare(recorded("ddp_h200_2ranks"), lacking("50 % of kernels", tmp_path))

    assert 0 == len(found.kernel_changes) == len(found.collective_changes)


# Which rank is late is said where waiting for it is what changed.


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("kind", "said", "gone"),
    [
        ("python", "rank 1's host is late", "rank 1's host was late"),
        ("kernel", "the compute of rank 1 takes longer", "the compute of rank 1 took longer"),
    ],
)
def test_who_is_late_is_said_with_what_a_step_loses_by_it(tmp_path: Path, kind: str, said: str, gone: str) -> None:
    """Rank 1 alone takes 4 ms longer, of which the device's queue hides some; the others wait for it."""
    clean = dptrace.open(planted_job(tmp_path / "clean"), cache=False)
    late = dptrace.open(planted_job(tmp_path / "late", [Plant(1, kind, 4)]), cache=False)

    longer = compare([clean], [late])
    (step,) = (change for change in longer.changes if change.name == "wall_ns")
    (size,) = re.findall(rf"slower per step: {said} \+([\d.]+) ms\.", longer.summary())
    assert 0.8 <= float(size) * 1e6 / step.delta <= 1.25
    assert f"faster per step: {gone} {MINUS}{size} ms." in compare([late], [clean]).summary()
    assert "exposed communication" not in longer.summary()


@pytest.mark.heavy
def test_a_late_stage_is_said_where_waits_are_not_measured(tmp_path: Path) -> None:
    """A pipeline's messages are waits and transfers in one; without the late stage, the step is as long as before."""
    program = pipeline(one_forward_one_backward, 3)
    clean, late = (
        dptrace.open(write(tmp_path / name, programs.run(program, 3, plants)), cache=False)
        for name, plants in (("clean", ()), ("late", (programs.Plant(1, "F", 15),)))
    )

    assert "slower per step: rank 1's host is late +" in compare([clean], [late]).summary()
    assert f"faster per step: rank 1's host was late {MINUS}" in compare([late], [clean]).summary()


@pytest.mark.heavy
def test_a_late_stage_is_said_beside_what_else_takes_longer(tmp_path: Path) -> None:
    """All stages compute longer by two thirds of what the late one takes longer by itself."""
    program = pipeline(gpipe, 3)
    more = tuple(programs.Plant(rank, "B", 3) for rank in range(3))
    clean, late = (
        dptrace.open(write(tmp_path / name, programs.run(program, 3, plants)), cache=False)
        for name, plants in (("clean", ()), ("late", (programs.Plant(1, "F", 10), *more)))
    )

    (size,) = re.findall(r"slower per step: rank 1's host is late \+([\d.]+) ms", compare([clean], [late]).summary())
    (step,) = (change for change in compare([clean], [late]).changes if change.name == "wall_ns")
    assert 0.5 <= float(size) * 1e6 / step.delta < 0.8


def test_what_all_ranks_send_longer_is_nobodys_lateness() -> None:
    """Exposed transfer is exposed communication."""
    ms, sides = 1_000_000, list[Run]()
    for more in (0, 3):
        builds = [TimelineBuilder(rank, bounds=(0, 10 * ms, 20 * ms)) for rank in (0, 1)]
        for build in builds:
            for start in (0, 10 * ms):
                build.compute(start, start + 5 * ms).all_reduce(start + 5 * ms, start + (6 + more) * ms)
        sides.append(run_of([build.build() for build in builds]))

    before, after = sides
    assert "late" not in compare([before], [after]).summary()


@pytest.mark.heavy
def test_a_gate_says_what_it_could_have_found() -> None:
    """Kept, or not decided: then --fail-unchecked fails, and no mark of success is shown."""
    jobs = {noise: [job(10, 2, seed=seed, noise=noise) for seed in range(6)] for noise in (0.002, 0.15)}
    quiet, found = compare(jobs[0.002][:3], jobs[0.002][3:]), compare(jobs[0.15][0], jobs[0.15][1])
    limit = parse("wall > +5%")
    kept, unsure, strict = limit.check(quiet), limit.check(found), limit.check(found, even_unchecked=True)

    assert (True, False, None) == (kept.decided, kept.failed, kept.needed)
    assert kept.detectable == pytest.approx(0.05 * 109e6, rel=0.3)
    assert (False, False, True) == (unsure.decided, unsure.failed, strict.failed)
    assert unsure.detectable is not None
    assert unsure.detectable > 0.05 * 109e6
    assert unsure.needed is not None
    assert unsure.needed > 3
    assert "✓" not in markdown(found, [unsure])
    assert 'skipped="1"' in junit_xml(found, [unsure])
