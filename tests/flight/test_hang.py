"""Which rank makes a job hang."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dptrace.commands.shared.main import cli
from dptrace.flight.hang import find_hang
from tests.support.flight_files import WORLD, Call, call, write
from tests.support.paths import ROOT


def causes(content: dict[str, Any]) -> list[tuple[str, list[int]]]:
    return [(fault["kind"], fault["culprits"]) for fault in content["faults"] if fault["is_cause"]]


@pytest.mark.slow
@pytest.mark.spawn
def test_each_planted_culprit_is_named(tmp_path: Path) -> None:
    """Ten real jobs that hang, or that gloo ends where NCCL hangs: the rank, what it did, and the line of its call."""
    pytest.importorskip("torch", reason="jobs that hang need torch")
    from tests.support.hanging_jobs import VARIANTS, culprit_of

    script = ROOT / "tests" / "support" / "hanging_jobs.py"
    environment = {"PYTHONPATH": str(ROOT), "TORCH_FR_BUFFER_SIZE": "100", "OMP_NUM_THREADS": "1", "PATH": ""}
    line = [sys.executable, str(script), str(tmp_path), *VARIANTS]
    subprocess.run(line, env=environment, check=True, timeout=300, capture_output=True)

    found = {variant: find_hang([tmp_path / variant]) for variant in VARIANTS}
    assert {variant: [culprit_of(variant)] for variant in VARIANTS} == {
        variant: content["culprits"] for variant, content in found.items()
    }
    assert all({kind for kind, _ in causes(content)} == VARIANTS[variant][0] for variant, content in found.items())
    rows = [row for content in found.values() for row in content["ranks"]]
    assert all("hanging_jobs.py:" in row["line"] and row["stack"] for row in rows)
    begun = "In group 0 default_pg, ranks 1, 2 began collective 7 (all_reduce), rank 0 only 6."
    assert found["sleeps"]["verdict"].startswith(begun)  # the words of `dptrace record --timeout`


def test_each_culprit_is_named_in_the_dumps_of_nccl(tmp_path: Path) -> None:
    """The same jobs over NCCL, whose calls return at once, and one that NCCL ended with wrong data."""
    from tests.support.hanging_jobs import VARIANTS, culprit_of

    shutil.unpack_archive(Path(__file__).with_name("nccl_h200.zip"), tmp_path)
    expected = {variant: (kinds, [culprit_of(variant)]) for variant, (kinds, _) in VARIANTS.items()}
    expected["ended_with_wrong_data"] = {"operator"}, [1]

    found = {variant: find_hang([tmp_path / variant]) for variant in expected}
    assert expected == {
        variant: ({kind for kind, _ in causes(content)}, content["culprits"]) for variant, content in found.items()
    }
    assert "rank 1 as _all_gather_base" in found["ended_with_wrong_data"]["verdict"]
    for variant, content in found.items():
        (advice,) = content["next"]
        assert f"rank {expected[variant][1][0]} " in advice, variant


TP, OTHER_TP, DP = ("5", "tp"), ("6", "tp"), ("7", "dp")
DONE = [call("all_reduce", number) for number in (1, 2)]


def ranks(usual: list[Call], culprit: list[Call] | None, at: int = 2, size: int = 4) -> dict[int, list[Call]]:
    """Return dumps in which one rank differs from the others, or, for None, is missing."""
    return {rank: DONE + (culprit or []) if rank == at else DONE + usual for rank in range(size) if culprit is not None
            or rank != at}  # fmt: skip


def waits(operator: str = "all_reduce", number: int = 3, **more: Any) -> Call:
    return call(operator, number, "started", **more)


def gloo(number: int, group: tuple[str, str], is_over: bool = False) -> Call:
    entry = call("all_reduce", number, "scheduled", group=group)
    return {**entry, "profiling_name": "gloo:all_reduce", "retired": is_over}


UNLISTED = {("", ""): list[int]()}
ONE = [call("all_gather", 3, "scheduled"), call("all_gather", 3, "scheduled"), call("coalesced", 3, sizes=[])]
FOUR = {WORLD: [0, 1, 2, 3]}
CASES: dict[str, tuple[dict[int, list[Call]], dict[tuple[str, str], list[int]], list[tuple[str, list[int]]], str]] = {
    "all completed": (ranks([], []), FOUR, [], "No collective is waiting: each rank"),
    "some dumps": ({0: DONE}, FOUR, [], "can't be told without all ranks' dumps"),
    "not begun": (ranks([waits()], []), FOUR, [("missing", [2])], "rank 2 only 2. Rank 2 has last begun collective 2"),
    "no dump": (ranks([waits()], None), FOUR, [("no dump", [2])], "Rank 2 left no dump"),
    "same sum of elements": (ranks([waits(sizes=[[4, 4]])], [waits(sizes=[[16]])]), FOUR, [("stalled", [])], "alike"),
    "on one GPU it has not started": (
        ranks([waits()], [call("all_reduce", 3, "scheduled")]), FOUR, [("stalled", [2])], "scheduled on rank 2"
    ),
    "inputs of an all-gather differ": (
        ranks([waits("all_gather", sizes=[[3]], out=[[9]])], [waits("all_gather", sizes=[[0]], out=[[9]])]),
        FOUR, [("stalled", [])], "alike",
    ),
    "outputs of an all-gather differ": (
        ranks([waits("all_gather", sizes=[[3]], out=[[12]])], [waits("all_gather", sizes=[[3]], out=[[9]])]),
        FOUR, [("sizes", [2])], "rank 2 as all_gather",
    ),
    "two collectives in turn": (
        ranks([waits(sizes=[[5]]), waits(number=4, sizes=[[7]])], [waits(sizes=[[7]]), waits(number=4, sizes=[[5]])]),
        FOUR, [("order", [2])], "The others began that one as collective 4",
    ),
    "one that NCCL ended with wrong data": (
        ranks([call("all_reduce", 3), waits(number=4)], [call("all_gather", 3), call("all_reduce", 4)]),
        FOUR, [("operator", [2])], "Rank 2 began collective 3 (all_gather) of group 0 default_pg, at train.py:33",
    ),
    "wrong data, and no hang": (
        ranks([call("all_reduce", 3)], [call("all_gather", 3)]), FOUR, [], "No collective is waiting"
    ),
    "two groups in turn": (
        ranks([waits(), waits(number=1, group=DP)], [waits(number=1, group=DP), waits()]),
        FOUR | {DP: [0, 1, 2, 3]}, [("order", [2])], "before",
    ),
    "a circle": (
        ranks([waits()], [waits(number=1, group=DP)]), FOUR | {DP: [0, 1, 2, 3]}, [("group", [2])],
        "Rank 2 is in collective 1 (all_reduce) of group 7 dp, at train.py:31 (in all_reduce).",
    ),
    "a chain over groups": (
        {0: [waits(number=1, group=TP)], 1: [], 2: [waits(number=1, group=DP)], 3: [waits(number=1, group=OTHER_TP)]},
        {TP: [0, 1], OTHER_TP: [2, 3], DP: [0, 2]}, [("missing", [1])], "Rank 1 has no open call.",
    ),
    "calls in one": (ranks(ONE, ONE), FOUR, [], "No collective is waiting"),  # their own entries stay "scheduled"
    "calls in one that wait": (
        ranks([*ONE[:2], waits("coalesced", sizes=[])], []), FOUR, [("missing", [2])], "began collective 3 (all_gather)"
    ),
    "two sends": (
        {0: [waits("send 0->1", is_p2p=True)], 1: [waits("send 1->0", is_p2p=True)]},
        {WORLD: [0, 1]}, [("group", [0, 1])], "Rank 1 is in message 3 (send 1->0)",
    ),
    "a receive in a pipeline": (
        {0: [waits("recv 0<-1", 1, is_p2p=True)], 1: [waits("recv 1<-2", 1, is_p2p=True)], 2: []},
        {WORLD: [0, 1, 2]}, [("missing", [2])], "rank 1 waits to receive from rank 2, which has not begun to send",
    ),
    "a reduce-scatter needs all ranks": (
        {0: [*DONE, call("reduce_scatter", 3)], 1: [*DONE, waits("reduce_scatter")]},
        {WORLD: [0, 1]}, [("gpu", [1])], "rank 1",
    ),
    "a broadcast that its source has completed": (  # it need not wait for the others
        {0: [*DONE, call("broadcast", 3)], 1: [*DONE, waits("broadcast")]}, {WORLD: [0, 1]}, [("stalled", [1])], ""
    ),
    # gloo's threads mark what is over in any order: who has completed the next one waits in none before it.
    "a mark that is late": (
        {0: [gloo(1, WORLD, True), gloo(2, WORLD, True), gloo(3, WORLD)],
         1: [gloo(1, WORLD), gloo(2, WORLD, True), gloo(3, WORLD)], 2: [gloo(1, WORLD, True), gloo(2, WORLD, True)]},
        {WORLD: [0, 1, 2]}, [("missing", [2])], "ranks 0, 1 began collective 3",
    ),
    "alone in groups whose ranks are not listed": (
        {rank: [gloo(1, WORLD, True), gloo(1, (str(3 + rank), "undefined"))] for rank in range(3)},
        UNLISTED, [("group", [0, 1, 2])], "circle",
    ),
    "two of a group whose ranks are not listed": (
        {0: [gloo(1, WORLD, True), gloo(1, ("3", "undefined"))], 1: [gloo(1, WORLD, True), gloo(1, ("3", "undefined"))],
         2: [gloo(1, WORLD, True)]},
        UNLISTED, [("unknown", [])], "",
    ),
    "a circle of groups with known ranks": (
        {0: [waits(number=1, group=TP)], 1: [waits(number=1, group=OTHER_TP)], 2: [waits(number=1, group=DP)]},
        {TP: [0, 1], OTHER_TP: [1, 2], DP: [0, 2]}, [("group", [0, 1, 2])],
        "circle: rank 0 in group 5 tp for rank 1, rank 1 in group 6 tp for rank 2, rank 2 in group 7 dp for rank 0.",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_nccl_would_dump_is_understood(case: str, tmp_path: Path) -> None:
    """Built by torch's format: what may differ is no fault, and who waits is no cause."""
    calls, groups, expected, text = CASES[case]
    content = find_hang([write(tmp_path / "dumps", calls, groups)])

    assert expected == causes(content)
    assert text in content["verdict"]
    assert groups is not UNLISTED or "None is behind" not in json.dumps(content)


def open_only(numbers: dict[int, range], **more: Any) -> dict[int, list[Call]]:
    """Return dumps of open calls only, as ``onlyActive`` writes them."""
    return {rank: [waits(number=number, **more) for number in some] for rank, some in numbers.items()}


def test_a_rank_behind_on_its_gpu_is_named_by_what_torch_counts(tmp_path: Path) -> None:
    """All have begun the same; one has completed less, and another group inherits it. Nothing was overwritten."""
    calls = open_only({0: range(12, 13), 1: range(12, 13), 2: range(10, 13), 3: range(12, 13)})
    for rank in (2, 3):
        calls[rank].append(waits(number=4, group=TP))
    status = {rank: {"0": (12, 9 if rank == 2 else 11), "5": (4, 3)} for rank in calls}
    folder = write(tmp_path / "dumps", calls, FOUR | {TP: [2, 3]}, status, first=112)

    content = find_hang([folder])
    assert [("gpu", [2])] == causes(content)
    assert "ranks 0, 1, 3 completed collectives up to 11, rank 2 only up to 9" in content["verdict"]
    assert "overwritten" not in content["verdict"]
    assert "GPUs of rank 2" in content["next"][0]
    assert ["stalled"] == [fault["kind"] for fault in content["faults"] if not fault["is_cause"]]


@pytest.mark.parametrize(
    ("numbers", "groups", "status", "said"),
    [
        # A dump of open calls only has none of a group whose collectives are over; torch's counts have them.
        ({0: range(0), 1: range(7, 8)}, {TP: [0, 1]}, {0: (7, 7), 1: (7, 6)}, ""),
        # Its GPU stands, its host began fewer: one cause, with both.
        (
            *({0: range(9, 12), 1: range(6, 9)}, {WORLD: [0, 1]}, {0: (11, 8), 1: (8, 5)}),
            "on the host, too: begun up to 8, others up to 11",
        ),
        # Others have completed two more, in which rank 2 took part.
        (
            *({0: range(8, 9), 1: range(6, 9)}, {WORLD: [0, 1, 2]}, {0: (8, 7), 1: (8, 5)}),
            "Rank 2 left no dump.",
        ),
    ],
)
def test_a_gpu_that_is_behind_is_the_cause(
    numbers: dict[int, range],
    groups: dict[tuple[str, str], list[int]],
    status: dict[int, tuple[int, int]],
    said: str,
    tmp_path: Path,
) -> None:
    """Of what open calls and torch's counts tell of one group."""
    (group,) = groups
    counts = {rank: {group[0]: each} for rank, each in status.items()}

    content = find_hang([write(tmp_path / "dumps", open_only(numbers, group=group), groups, counts, first=40)])
    assert [("gpu", [1])] == causes(content)
    assert said in json.dumps([content["verdict"], content["notes"]])


def test_what_dumps_of_open_calls_do_not_hold_is_completed(tmp_path: Path) -> None:
    """Without torch's counts, gaps in the numbers of entries tell that completed calls are left out."""
    calls = open_only({0: range(8, 9), 1: range(6, 9)})
    folder = write(tmp_path / "dumps", calls, {WORLD: [0, 1]}, first=20)
    path = folder / "rank_1.json"
    content = json.loads(path.read_text())
    content["entries"][0]["record_id"] -= 3
    path.write_text(json.dumps(content))

    assert [("gpu", [1])] == causes(find_hang([folder]))


@pytest.mark.parametrize(("completed", "is_lost"), [(5, True), (7, False), (None, True)])
def test_the_cause_is_overwritten_only_where_the_ring_was(completed: int | None, is_lost: bool, tmp_path: Path) -> None:
    """By torch's counts, or where they miss, by entries that do not begin with the first."""
    done = call("all_reduce", 1, group=DP)
    calls = {rank: [done, waits(number=8), waits(number=9)] for rank in range(4)}
    status = None if completed is None else {rank: {"0": (9, completed)} for rank in calls}
    folder = write(tmp_path / "dumps", calls, FOUR | {DP: [0, 1, 2, 3]}, status, first=70)

    content = find_hang([folder])
    assert is_lost == ("the cause may be overwritten" in content["verdict"])
    assert is_lost != ("None is behind" in content["verdict"])
    assert [("stalled", [])] == causes(content)


def test_a_send_without_its_receive_beside_a_collective_that_all_began(tmp_path: Path) -> None:
    """Ranks that wait for the sender inherit it."""
    calls = {
        0: [call("all_reduce", 5, group=TP), waits("send 0->1", 5, group=TP, is_p2p=True), waits(number=7, group=DP)],
        1: [call("all_reduce", 5, group=TP)],
        2: [waits(number=7, group=DP)],
    }
    groups = {WORLD: [0, 1, 2], TP: [0, 1], DP: [0, 2]}

    content = find_hang([write(tmp_path / "dumps", calls, groups)])
    assert [("missing", [1])] == causes(content)
    assert "rank 0 waits to send to rank 1, which has no open receive" in content["verdict"]
    assert ["stalled"] == [fault["kind"] for fault in content["faults"] if not fault["is_cause"]]


def sends(number: int, is_over: bool = False, sizes: Any = ((8,),)) -> Call:
    return call("send 0->1", number, "completed" if is_over else "started", is_p2p=True, sizes=sizes)


def receives(number: int, is_over: bool = False) -> Call:
    return call("recv 1<-0", number, "completed" if is_over else "started", is_p2p=True)


@pytest.mark.parametrize(
    ("ours", "theirs", "first", "expected", "words"),
    [
        ([sends(1, True), sends(2, True), sends(3)], [receives(1, True), receives(2, True)], 0, [("missing", [1])],
         "message 3; rank 1 has begun to receive only 2"),
        # NCCL may complete a send before its receive: that of the open one is the third.
        ([sends(1, True), sends(2, True), sends(3)], [receives(1, True), receives(2)], 0, [("gpu", [1])],
         "rank 1 waits to receive from rank 0, which has completed its side"),
        ([sends(1, True), sends(2, sizes=[[9]])], [receives(1), receives(2)], 0, [("sizes", [0, 1])], "[9]"),
        ([sends(1, True), sends(2, sizes=[[9]])], [receives(1), receives(2)], 7, [("sizes", [0, 1])], "if these are"),
        ([sends(1)], [receives(1, True)], 0, [("gpu", [0])], "rank 1, which has completed its side"),
        ([sends(1)], [receives(1, True)], 7, [("missing", [1])], "may be left out"),
        ([sends(1, True)], [receives(1)], 0, [("gpu", [1])], "rank 1 is behind on the GPU"),
    ],
)  # fmt: skip
def test_messages_are_counted_where_both_dumps_are_whole(
    ours: list[Call], theirs: list[Call], first: int, expected: Any, words: str, tmp_path: Path
) -> None:
    """A message is the n-th of its pair; where the recorder lost some, the answer says what it takes for granted."""
    content = find_hang([write(tmp_path / "dumps", {0: ours, 1: theirs}, first=first)])

    assert expected == causes(content)
    assert words in content["verdict"]


def test_collectives_that_all_began_are_told_by_the_first(tmp_path: Path) -> None:
    """Those begun after it, by ranks that wait in it, follow from it."""
    calls = {rank: [*DONE, waits(), waits(number=1, group=(TP, OTHER_TP)[rank // 2])] for rank in range(4)}

    content = find_hang([write(tmp_path / "dumps", calls, FOUR | {TP: [0, 1], OTHER_TP: [2, 3]})])
    assert [("0 default_pg", True), ("5 tp", False), ("6 tp", False)] == [
        (fault["group"], fault["is_cause"]) for fault in content["faults"]
    ]


def test_dumps_in_folders_of_machines_are_one_job(tmp_path: Path) -> None:
    """A folder without dumps is searched below."""
    for machine, some in (("node0", (0, 1)), ("node1", (2, 3))):
        folder = tmp_path / "dumps" / machine
        folder.mkdir(parents=True)
        write(folder, {rank: DONE + ([] if rank == 2 else [waits()]) for rank in some}, FOUR)

    assert [2] == find_hang([tmp_path / "dumps"])["culprits"]


REAL = ROOT.parent / "shared" / "inputs" / "flight"
TRUTH: dict[str, list[tuple[str, list[int]]]] = {
    "gpu_error_1st": [("gpu", [12]), ("gpu", [14])],
    "gpu_error_2nd": [("gpu", [14]), ("gpu", [9])],
    "fr1_pp_send_without_recv": [("missing", [1])],
    "fr2_only_active": [("gpu", [2])],
    "flight_subdead_gloo": [("group", [0, 1, 2, 3])],
}


@pytest.mark.heavy
@pytest.mark.parametrize("name", TRUTH)
def test_the_ranks_of_real_hangs_are_named(name: str, tmp_path: Path) -> None:
    """Dumps of a job on 16 GPUs and of smaller ones; without any one of them there is an answer, too."""
    if not (REAL / name).is_dir():
        pytest.skip("the dumps are not here")
    content = find_hang([REAL / name])
    files = [path for path in (REAL / name).iterdir() if path.suffix != ".log"]

    assert TRUTH[name] == causes(content)
    assert "overwritten" not in content["verdict"]
    assert "None is behind" not in content["verdict"]
    for left_out in files:
        assert find_hang([path for path in files if path != left_out])["verdict"]


def test_groups_of_one_name_are_told_apart(tmp_path: Path) -> None:
    """split_group gives several groups one name; each has its own ranks and numbers."""
    write(tmp_path / "a", {rank: [waits(number=1, group=TP)] for rank in (0, 1)}, {TP: [0, 1]})
    first = call("all_reduce", 1, group=TP)
    write(tmp_path / "b", {2: [first, waits(number=2, group=TP)], 3: [first]}, {TP: [2, 3]})

    content = find_hang([tmp_path / "a", tmp_path / "b"])
    assert [3] == content["culprits"]
    assert "In group 5 tp [2, 3], rank 2 began collective 2" in content["verdict"]


def test_the_answer_has_a_page_and_json(tmp_path: Path) -> None:
    """Names from a dump are escaped in the page, and can't control a terminal."""
    hostile = '<script>alert("\x1b[31m")</script>'
    folder = write(tmp_path / "dumps", ranks([waits()], [waits("broadcast", file=f"/home/{hostile}.py")]), FOUR)
    page = tmp_path / "hang.html"
    done, printed, as_json = (
        CliRunner().invoke(cli, ["flight", str(folder), *options]) for options in (["-o", str(page)], [], ["--json"])
    )

    assert (0, 0, 0) == (done.exit_code, printed.exit_code, as_json.exit_code), done.output
    text = page.read_text()
    assert "<script>alert" not in text
    assert "&lt;script&gt;" in text
    assert all(word in text for word in ("Stack of rank 2", "train.py:33", "Who hangs"))
    assert "\x1b" not in printed.output + as_json.output
    assert "Cause: rank 2 (another collective)\n" in printed.output
    assert "cause: rank 2 (another collective)" in text
    content = json.loads(as_json.stdout)
    assert ([2], "operator") == (content["culprits"], content["faults"][0]["kind"])
    assert content == json.loads(json.dumps(find_hang([folder])))


@pytest.mark.slow
def test_each_planted_culprit_of_a_mesh_is_named(tmp_path: Path) -> None:
    """24 real jobs of eight ranks, tensor × pipeline × data parallel: who it was, and what it did."""
    pytest.importorskip("torch", reason="the list of jobs that hang needs torch")
    from tests.support.hanging_meshes import PLANTS

    shutil.unpack_archive(Path(__file__).with_name("meshes_gloo.zip"), tmp_path)
    found = {variant: find_hang([tmp_path / variant]) for variant in PLANTS}

    assert {variant: (plant.kinds, list(plant.named or plant.culprits)) for variant, plant in PLANTS.items()} == {
        variant: ({kind for kind, _ in causes(content)}, content["culprits"]) for variant, content in found.items()
    }
    assert "without the all_reduce of group 0 default_pg" in found["leaves_the_norm_out"]["verdict"]
    assert "in a circle: rank 0 in group 5 dp for rank 2" in found["circle"]["verdict"]
    assert any("no sends" in note for note in found["loader_before_a_send"]["notes"])
    assert not any("no sends" in note for note in found["hook_stands"]["notes"])


@pytest.mark.slow
@pytest.mark.spawn
def test_a_mesh_that_hangs_now_is_understood(tmp_path: Path) -> None:
    """One of the jobs behind the stored dumps, run again."""
    pytest.importorskip("torch", reason="jobs that hang need torch")
    from tests.support.hanging_meshes import PLANTS

    script, variant = ROOT / "tests" / "support" / "hanging_meshes.py", "circle"
    environment = {"PYTHONPATH": str(ROOT), "TORCH_FR_BUFFER_SIZE": "40", "OMP_NUM_THREADS": "1", "PATH": ""}
    line = [sys.executable, str(script), str(tmp_path), variant]
    subprocess.run(line, env=environment, check=True, timeout=100, capture_output=True)
    content = find_hang([tmp_path / variant])
    assert (list(PLANTS[variant].culprits), PLANTS[variant].kinds) == (
        content["culprits"],
        {kind for kind, _ in causes(content)},
    )
