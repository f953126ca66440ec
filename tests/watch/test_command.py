"""``dptrace watch`` with real ranks: what it says, what it keeps, and that the training does not notice."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from dptrace.commands.shared.main import cli
from dptrace.core.units import wrapped
from dptrace.watch.records import FORWARD, read
from dptrace.watch.verdict import lines as verdict_lines
from tests.support.forking import run_python, start_python
from tests.support.kineto_files import KinetoFile, training_step
from tests.support.watch_records import USUAL_MS, Job, Plant, summarized

pytest.importorskip("torch", reason="watching needs torch")

TRAIN = """
import os, shutil, sys, time, torch, torch.distributed as dist
from torch import nn
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = nn.parallel.DistributedDataParallel(nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
what = sys.argv[1]
for step in range(int(sys.argv[2])):
    if rank == 1 and what == "slow":
        time.sleep(0.04)
    if what == "gone" and step == 20 and rank == 0:
        while os.path.exists(sys.argv[3]):  # others may write into it meanwhile
            shutil.rmtree(sys.argv[3], ignore_errors=True)
    if what == "dies" and step == 30 and rank == 1:
        os._exit(7)
    model(torch.ones(2, 16)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
if rank == 0:
    print("trained", what, flush=True)
dist.destroy_process_group()
sys.exit(3 if what == "fails" else int(sys.argv[4]) if what == "gone" else 0)
"""


def watched(folder: Path, *words: str, options: tuple[str, ...] = ()) -> Any:
    (folder / "train.py").write_text(TRAIN)
    return run_python(
        "-m", "dptrace", "watch", "--gpus", "2", "-o", "w", *options, "train.py", *words, cwd=folder, env={**os.environ}
    )


@pytest.mark.slow
@pytest.mark.spawn
def test_a_rank_that_is_late_is_named_at_the_end(tmp_path: Path) -> None:
    """The verdict names rank and stage, summary.json has the figures, and the script's output is its own."""
    done = watched(tmp_path, "slow", "60", options=("--captures", "0"))

    assert (0, "trained slow\n") == (done.returncode, done.stdout)
    assert "rank 1 in other" in done.stderr
    summary = json.loads((tmp_path / "w" / "summary.json").read_text())
    (first, *_) = summary["suspects"]
    assert (1, "other", 2, 59) == (first["rank"], first["stage"], summary["ranks"], summary["last_step"])
    assert 40 == pytest.approx(first["ns_per_step"] / 1e6, rel=0.15)


@pytest.mark.slow
@pytest.mark.spawn
@pytest.mark.parametrize(("what", "code"), [("gone", 0), ("gone", 7), ("fails", 3)])
def test_the_exit_code_and_the_last_line_are_the_scripts(what: str, code: int, tmp_path: Path) -> None:
    """With the folder removed meanwhile, and in a script that ends with an exit code."""
    done = watched(tmp_path, what, "60", str(tmp_path / "w"), str(code))

    assert code == done.returncode
    assert (what == "gone") == ("was removed" in done.stderr)
    assert "recording" not in done.stderr
    assert f"trained {what}" in done.stdout
    assert "Traceback" not in done.stderr.replace('Traceback (most recent call last):\n  File "<string>"', "")


@pytest.mark.slow
@pytest.mark.spawn
def test_a_rank_that_dies_leaves_its_exit_code_and_a_verdict(tmp_path: Path) -> None:
    """Nothing is said of a recording, for which nobody has asked."""
    done = watched(tmp_path, "dies", "60")

    assert 7 == done.returncode
    assert "Rank 1 died: exit code 7" in done.stderr
    assert "recorded" not in done.stderr
    assert (tmp_path / "w" / "summary.json").exists()


@pytest.mark.slow
@pytest.mark.spawn
def test_ranks_that_a_launcher_starts_watch_themselves(tmp_path: Path) -> None:
    """``torchrun -m dptrace.watch``: rank 0 starts what reads the files, and waits for its verdict."""
    (tmp_path / "train.py").write_text(TRAIN)
    ranks = ("--standalone", "--nproc-per-node", "2")
    words = ("-m", "torch.distributed.run", *ranks, "-m", "dptrace.watch", "-o", "w", "train.py", "slow", "40")
    done = run_python(*words, cwd=tmp_path, env={**os.environ})

    assert 0 == done.returncode
    assert "trained slow" in done.stdout
    assert "rank 1 in other" in done.stderr
    assert (tmp_path / "w" / "summary.json").exists()


@pytest.mark.slow
@pytest.mark.spawn
def test_a_slow_step_is_named_and_the_next_ones_are_recorded(tmp_path: Path) -> None:
    """The capture is a run of its own, is analyzed, and stands in the verdict with the step that was slow."""
    code = TRAIN.replace('if rank == 1 and what == "slow":', "time.sleep(0.05)\n    if rank == 1 and step == 75:")
    (tmp_path / "train.py").write_text(code.replace("time.sleep(0.04)", "time.sleep(0.9)"))
    words = ("watch", "--gpus", "2", "-o", "w", "--captures", "1", "--capture-steps", "2", "train.py", "once", "170")
    done = run_python("-m", "dptrace", *words, cwd=tmp_path, env={**os.environ})
    summary = json.loads((tmp_path / "w" / "summary.json").read_text())
    (capture,) = summary["captures"]

    assert 0 == done.returncode
    assert "step 75 took" in capture["why"]
    assert "rank 1 took longer between the stages" in capture["why"]
    assert ("analyzed", 2) == (capture["state"], len(list((tmp_path / "w" / "capture1").glob("rank*.gz"))))
    assert summary["profiled_steps"] >= 4


@pytest.mark.spawn
def test_every_whole_record_of_a_killed_rank_is_kept(tmp_path: Path) -> None:
    """After kill -9, the steps up to the last tenth of a second are there, in order."""
    code = (
        "import time, torch, dptrace\n"
        "p = torch.ones(2, requires_grad=True)\n"
        "o = torch.optim.SGD([p], lr=0.1)\n"
        "with dptrace.watch('w', quiet=True):\n"
        "    for step in range(100000):\n"
        "        p.sum().backward(); o.step(); time.sleep(0.002)\n"
        "        if step == 50: print('go', flush=True)\n"
    )
    (tmp_path / "train.py").write_text(code)
    process = start_python("train.py", cwd=tmp_path, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    time.sleep(0.3)
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    steps = read(tmp_path / "w" / "rank0000.steps")["step"]

    assert len(steps) > 50
    assert list(range(1, len(steps) + 1)) == steps.tolist()


def test_a_folder_shows_what_is_known_of_its_run(tmp_path: Path) -> None:
    """As text and as JSON; of captures, what the reader of the job has written down."""
    Job("ddp", 4, [Plant(2, "forward", 12.0)]).run(60).write(tmp_path)
    told = {"captures": [{"sentence": "capture step 9 took 2.3 times the median (analyzed: w/capture1)"}]}
    (tmp_path / "summary.json").write_text(json.dumps(told))

    text = CliRunner().invoke(cli, ["watch", str(tmp_path)])
    answer = CliRunner().invoke(cli, ["watch", str(tmp_path), "--json"])

    assert "rank 2 in forward" in text.output
    assert told["captures"][0]["sentence"] in text.output
    assert told["captures"] == json.loads(answer.output)["captures"]
    assert 2 == json.loads(answer.output)["suspects"][0]["rank"]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["a", "-q"], 2, "--quiet is for a script"),
        (["a", "--every", "5"], 2, "--every is for a script"),
        (["a", "--gpus", "2"], 2, "--gpus is for a script"),
        (["a", "--total", "9", "--json"], 0, "suspects"),
        (["a", "b"], 2, "dptrace diff a b"),
        (["c/none"], 2, "no such script, nor folder"),
        (["-o", "/dev/null/x", "train.py"], 2, "Error: /dev/null/x cannot be created"),
        (["nothing.py"], 2, "nothing.py"),
        (["--capture", "5", "train.py"], 2, "--capture"),
        (["."], 2, "Error: "),
        (["--gpus", "0", "x.py"], 2, "--gpus"),
    ],
)
def test_what_is_given_with_a_folder_has_an_effect(
    words: list[str], code: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options of scripts and a second folder are refused; a path that is wrong is the one that was given."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    (tmp_path / "b").mkdir()
    Job("ddp", 2).run(9).write(tmp_path / "a")
    result = CliRunner().invoke(cli, ["watch", *words])

    assert code == result.exit_code
    assert said in result.output
    assert "Traceback" not in result.output


def test_a_verdict_is_as_wide_as_columns_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if its output is no terminal."""
    monkeypatch.setenv("COLUMNS", "60")
    Job("ddp", 2).run(9).write(tmp_path)
    shown = CliRunner().invoke(cli, ["watch", str(tmp_path)]).output

    assert 60 >= max(map(len, shown.splitlines()))


@pytest.mark.heavy
@pytest.mark.parametrize("ranks", [4, 40])
def test_nothing_is_cut_at_any_width(ranks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The screen, of many ranks with the latest, and the verdict: each width has the words and numbers of the widest,
    in lines that fit.
    """
    from dptrace.watch.follow import Follower
    from dptrace.watch.screen import screen

    assert "waiting" in screen(Follower(tmp_path))[0]
    monkeypatch.setattr("time.time", lambda: 1e9)
    Job("ddp", ranks, [Plant(3, "forward", 12.0)]).run(60).write(tmp_path)
    follower = Follower(tmp_path)
    follower.poll()
    shown = {width: screen(follower, 600, width) for width in (60, 80, 100, 132, 1000)}

    def words(lines: list[str]) -> list[str]:
        return [word for line in lines if "▁" not in line for word in line.split()]  # bars are as many as there is room

    assert any(line.startswith("rank 3") for line in shown[80])
    assert any("rank 3 in forward" in line for line in shown[80])
    assert "left" in shown[80][0]
    assert 18 >= len(shown[80])
    verdict = verdict_lines(follower.summary())
    for width in (60, 80, 100, 132):
        table = [line for line in shown[width] if line.startswith(("ms", "rank", "median"))]
        assert min(ranks, 9) + 1 == len(table)
        assert len({len(line) for line in table if not line.startswith("median")}) == 1
        assert words(shown[1000]) == words(shown[width])
        said = wrapped("\n".join(verdict), width, 8).splitlines()
        assert words(verdict) == words(said)
        assert width >= max(map(len, [*shown[width], *said]))


def test_two_watched_runs_are_compared(tmp_path: Path) -> None:
    """By their summaries: what a step takes longer, and who is late only in one of them."""
    for name, plants in (("a", []), ("b", [Plant(2, "forward", 12.0)])):
        Job("ddp", 4, plants).run(60).write(tmp_path / name)
        answer = CliRunner().invoke(cli, ["watch", str(tmp_path / name), "--json"])
        (tmp_path / name / "summary.json").write_text(answer.output)
    both = [str(tmp_path / "a"), str(tmp_path / "b")]
    found = json.loads(CliRunner().invoke(cli, ["diff", *both, "--json"]).output)

    changes = {row["figure"]: row["change_ns"] / 1e6 for row in found["figures"]}
    assert 12 == pytest.approx(changes["median"], rel=0.1)
    assert [(2, "forward")] == [(row["rank"], row["stage"]) for row in found["new_suspects"]]
    assert "only in B: late    rank 2 in forward" in CliRunner().invoke(cli, ["diff", *both]).output
    assert 2 == CliRunner().invoke(cli, ["diff", *both, "--fail-if", "wall > +3%"]).exit_code
    assert 2 == CliRunner().invoke(cli, ["diff", both[0], "train.json"]).exit_code


def _watched(folder: Path, began: int, forward_ms: float, *plants: Plant) -> str:
    """Write a watched run with its summary."""
    job = Job("ddp", 4, plants, began, usual={**USUAL_MS, FORWARD: forward_ms}).run(30)
    summary = summarized(job.write(folder)) | {"created_unix_ns": began * 10**16}
    (folder / "summary.json").write_text(json.dumps(summary))
    return str(folder)


@pytest.mark.heavy
def test_a_history_of_watched_runs_says_from_which_on_steps_are_longer(tmp_path: Path) -> None:
    """In the order of time; who was late is in the row of its run."""
    for number in range(12):
        plants = [Plant(3, "data", 20.0)] if number == 2 else []
        _watched(tmp_path / f"run{number:02}", 100 + number, 9.0 if number < 6 else 15.0, *plants)
    shown = CliRunner().invoke(cli, ["history", str(tmp_path)])
    content = json.loads(CliRunner().invoke(cli, ["history", str(tmp_path), "--json"]).output)

    assert [f"run{number:02}" for number in range(12)] == [Path(run["run"]).name for run in content["runs"]]
    assert [6] == [change["index"] for change in content["changes"]]
    assert "rank 3 in data" in shown.output
    assert "run06 on, a median step takes" in shown.output


@pytest.mark.heavy
def test_a_watched_run_is_a_baseline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its summary is kept, and another watched run compared with it, without the folder it came from."""
    monkeypatch.chdir(tmp_path)
    _watched(tmp_path / "a", 100, 9.0)
    _watched(tmp_path / "b", 101, 21.0)
    run = CliRunner().invoke
    saved = run(cli, ["baseline", "save", "main", "a"])
    shutil.rmtree("a")
    run(cli, ["baseline", "use", "main"])
    listed = json.loads(run(cli, ["baseline", "list", "--json"]).output)
    found = json.loads(run(cli, ["diff", "b", "--json"]).output)
    changes = {row["figure"]: row["change_ns"] / 1e6 for row in found["figures"]}

    assert 0 == saved.exit_code, saved.output
    assert (26, 4) == (listed["baselines"][0]["steps"], listed["baselines"][0]["ranks"])
    assert 12 == pytest.approx(changes["median"], rel=0.1)
    Path("b/summary.json").unlink()
    assert found == json.loads(run(cli, ["diff", "b", "--json"]).output)
    for words in (["baseline", "save", "c", "b", "b2"], ["baseline", "save", "c", "b", "--ranks", "0"]):
        _watched(tmp_path / "b2", 101, 9.0)
        assert 2 == run(cli, words).exit_code


@pytest.mark.heavy
@pytest.mark.parametrize("kept", [4096 + 120 * 12, 8])
def test_a_summary_that_is_not_of_the_records_is_not_used(
    kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a file was cut, diff and history say what ``dptrace watch FOLDER`` does; of a whole one, the summary."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate("ab"):
        _watched(tmp_path / name, 100 + number, 9.0)
    path = Path("b/rank0001.steps")
    path.write_bytes(path.read_bytes()[:kept])
    run = CliRunner().invoke
    told = json.loads(run(cli, ["watch", "b", "--json"]).output)
    shown = run(cli, ["diff", "a", "b"]).output
    history = json.loads(run(cli, ["history", "a", "b", "--json"]).output)["runs"]

    assert told["file_notes"]
    assert all(note in shown for note in [*told["file_notes"], f"B  b: {told['steps']} steps"])
    assert {"a": 26, "b": told["steps"]} == {row["run"]: row["steps"] for row in history}
    assert 100 * 10**16 in [row["created_unix_ns"] for row in history]


@pytest.mark.parametrize("verb", ["analyze", "report", "whatif"])
def test_what_reads_recordings_says_that_a_watched_run_is_none(verb: str, tmp_path: Path) -> None:
    """With the command that reads it."""
    folder = _watched(tmp_path / "w", 100, 9.0)
    result = CliRunner().invoke(cli, [verb, folder])

    assert 1 == result.exit_code
    assert f"dptrace watch {folder}" in result.output


@pytest.mark.heavy
def test_a_recording_beside_a_watched_run_is_read_alone(tmp_path: Path) -> None:
    """The watch's own JSON files are no traces of a folder above it."""
    _watched(tmp_path / "w", 100, 9.0)
    (tmp_path / "w" / "capture1").mkdir()
    for rank in (0, 1):
        file = training_step(training_step(KinetoFile(rank=rank, world_size=2), 4, 0), 5, 100)
        file.write(tmp_path / "w" / "capture1" / f"r{rank}.json")
    result = CliRunner().invoke(cli, ["analyze", str(tmp_path), "--json"])
    content = json.loads(result.stdout)

    assert 0 == result.exit_code, result.output
    assert [0, 1] == [rank["rank"] for rank in content["ranks"]]


def test_a_page_follows_the_run(tmp_path: Path) -> None:
    """It is in the folder, loads itself again while the job runs, and shows who was late where."""
    from dptrace.watch.follow import Follower

    Job("ddp", 4, [Plant(2, "forward", 12.0, (20, 40))]).run(60).write(tmp_path)
    follower = Follower(tmp_path)
    follower.poll()
    follower.write()
    ended = (tmp_path / "watch.html").read_text()
    (tmp_path / "rank0002.ended").unlink()
    for file in follower.merger.files.values():
        follower.merger.files[file.rank] = msgspec.structs.replace(file, host="elsewhere")
    follower.write()

    shown = {title: float(share) for share, title in re.findall(r'opacity="(.+?)"><title>(.+?)</title>', ended)}
    assert shown["rank 2, step 30"] > 0.8
    assert shown.get("rank 2, step 50", 0) < 0.3
    assert "refresh" not in ended
    assert "refresh" in (tmp_path / "watch.html").read_text()


def test_view_of_a_watched_run_is_its_page(tmp_path: Path) -> None:
    """In a file; options of other pages are refused, with the command that has the answer."""
    Job("ddp", 4, [Plant(2, "forward", 12.0)]).run(60).write(tmp_path / "w")
    page = tmp_path / "page.html"

    written = CliRunner().invoke(cli, ["view", str(tmp_path / "w"), "-o", str(page)])
    refused = CliRunner().invoke(cli, ["view", str(tmp_path / "w"), "--text"])
    ignored = CliRunner().invoke(cli, ["view", str(tmp_path / "w"), "--ignore", "2", "-o", str(page)])

    assert 0 == written.exit_code
    assert "rank 2 in forward" in page.read_text()
    assert "Lateness by rank and step" in page.read_text()
    assert (2, 2) == (refused.exit_code, ignored.exit_code)
    assert "dptrace watch" in refused.output
    for path in (tmp_path / "w").glob("rank*.steps"):
        path.write_bytes(b"")
    assert 1 == CliRunner().invoke(cli, ["view", str(tmp_path / "w"), "-o", str(tmp_path / "other.html")]).exit_code


@pytest.mark.slow
@pytest.mark.spawn
def test_a_served_page_follows_the_run(tmp_path: Path) -> None:
    """Steps that come later are on it, without a reload of the server."""
    job = Job("ddp", 2).run(60)
    job.write(tmp_path / "w")
    for path in (tmp_path / "w").glob("*.ended"):
        path.unlink()
    command = [sys.executable, "-m", "dptrace", "view", str(tmp_path / "w"), "--serve", "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path) as server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        try:
            first = urllib.request.urlopen(address).read().decode()
            job.run(40).write(tmp_path / "w")
            until = time.monotonic() + 30
            while "96 of 2 ranks" not in urllib.request.urlopen(address).read().decode():
                assert time.monotonic() < until
                time.sleep(0.3)
        finally:
            server.terminate()

    assert "56 of 2 ranks" in first
