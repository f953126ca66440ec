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
    pytest.importorskip("torch", reason="the list of jobs that hang needs torch")
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
    "the cause is overwritten": (
        {rank: [waits(number=8)] for rank in range(4)}, FOUR, [("stalled", [])], "the cause may be overwritten"
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
        {TP: [0, 1], OTHER_TP: [2, 3], DP: [0, 2]}, [("missing", [1])], "Rank 1 has begun none.",
    ),
    "calls in one": (ranks(ONE, ONE), FOUR, [], "No collective is waiting"),  # their own entries stay "scheduled"
    "calls in one that wait": (
        ranks([*ONE[:2], waits("coalesced", sizes=[])], []), FOUR, [("missing", [2])], "began collective 3 (all_gather)"
    ),
    "two sends": (
        {0: [waits("send 0->1", is_p2p=True)], 1: [waits("send 1->0", is_p2p=True)]},
        {WORLD: [0, 1]}, [("group", [1]), ("group", [0])], "Rank 1 is in message 3 (send 1->0)",
    ),
    "a receive in a pipeline": (
        {0: [waits("recv 0<-1", is_p2p=True)], 1: [waits("recv 1<-2", is_p2p=True)], 2: []},
        {WORLD: [0, 1, 2]}, [("missing", [2])], "rank 1 waits to receive from rank 2, which has not begun to send",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_nccl_would_dump_is_understood(case: str, tmp_path: Path) -> None:
    """Built by torch's format: what may differ is no fault, and who waits is no cause."""
    calls, groups, expected, text = CASES[case]
    content = find_hang([write(tmp_path / "dumps", calls, groups)])

    assert expected == causes(content)
    assert text in content["verdict"]


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
    content = json.loads(as_json.stdout)
    assert ([2], "operator") == (content["culprits"], content["faults"][0]["kind"])
    assert content == json.loads(json.dumps(find_hang([folder])))
