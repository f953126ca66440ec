"""One list of findings, whoever asks: the same findings in the same order, with the same numbers."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dptrace
from dptrace.analysis.findings.finding import NOTABLY_MORE, Finding, Gain, top_findings
from dptrace.commands.shared.main import cli
from dptrace.core.units import duration, milliseconds
from dptrace.replay import finding_list
from dptrace.replay.finding_list import FindingList
from dptrace.replay.findings import findings_of
from dptrace.replay.gains import Measurer
from dptrace.replay.whatif import replay_of_some
from dptrace.run.columns import FINDINGS
from dptrace.viewers.base.table import order_sentence
from dptrace.viewers.gantt.finding_places import MOST
from dptrace.viewers.terminal.split import minor_sentence
from tests.support.paths import TRACES
from tests.support.planted import Plant, planted_job
from tests.support.programs import Plant as Slow
from tests.support.programs import one_forward_one_backward, pipeline, run, write
from tests.support.real_traces import REAL, needs_real_traces

EVERY = (0, 1, 2, 3)
FIGURES = ("kind", "text", "gain_ns", "gain_next_ns", "counted_ns")
THREE = [Plant(1, "loader", 3), Plant(2, "kernel", 1, layer=5), Plant(0, "operator", 2, [1], layer=1)]
JOBS: dict[str, Callable[[Path], Path]] = {
    "three causes": lambda folder: planted_job(folder, THREE),
    "hidden by another": lambda folder: planted_job(
        folder, [Plant(0, "loader", 5), Plant(1, "kernel", 5, layer=1)], ranks=2
    ),
    "idle": lambda folder: planted_job(folder, [Plant(rank, "pause", 3) for rank in range(4)]),
    "pipeline": lambda folder: write(folder, run(pipeline(one_forward_one_backward, 3), 3, [Slow(1, "F", 8)])),
    "clean": lambda folder: planted_job(folder),
}


def printed(*arguments: str) -> str:
    # Wide enough for a table to hold the beginning of a finding in one line.
    result = CliRunner().invoke(cli, arguments, env={"COLUMNS": "120"}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module", params=JOBS)
def job(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of each kind."""
    return JOBS[request.param](tmp_path_factory.mktemp(request.param.replace(" ", "_")) / "list")


@pytest.fixture(scope="module")
def listed(job: Path) -> tuple[Finding, ...]:
    """The list."""
    return findings_of(dptrace.open(job))


def rows(found: Any) -> list[tuple[Any, ...]]:
    """Return what identifies findings, and their figures."""
    return [tuple(row[name] for name in FIGURES) for row in found]


DATA: dict[str, Callable[[Path], Any]] = {
    "analyze": lambda job: json.loads(printed("analyze", str(job), "--json"))["findings"],
    "advise": lambda job: json.loads(printed("advise", str(job), "--json"))["findings"],
    "whatif": lambda job: json.loads(printed("whatif", str(job), "--json"))["findings"],
    "python": lambda job: dptrace.open(job).findings().to_dict("records"),
    "dict": lambda job: dptrace.open(job).to_dict()["findings"],
}


@pytest.mark.heavy
def test_data_has_the_list(job: Path, listed: tuple[Finding, ...]) -> None:
    """To the nanosecond, and nothing else."""
    for output in DATA:
        assert rows(finding.to_dict() for finding in listed) == rows(DATA[output](job)), output


@pytest.mark.heavy
def test_agents_have_the_list(job: Path, listed: tuple[Finding, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool of the MCP server, page by page."""
    from dptrace.commands.mcp_tools import Root, Tools
    from dptrace.load.options import ReadOptions

    monkeypatch.chdir(job.parent)  # as the server does
    tools = Tools(Root(job.parent), ReadOptions())
    pages = [tools.findings(job.name, limit=2, offset=offset)["rows"] for offset in range(0, len(listed) + 1, 2)]

    assert rows(finding.to_dict() for finding in listed) == rows(row for page in pages for row in page)


def plain(text: str) -> str:
    """Return a terminal's or a page's text without line breaks and escapes."""
    text = re.sub(r"\\([^\w\s])", r"\1", html.unescape(text))
    return re.sub(r"\s+", " ", text)


def page(job: Path, verb: str, *options: str) -> str:
    path = job.parent / f"{verb}.html"
    printed(verb, str(job), "-o", str(path), "--force", *options)
    return path.read_text(encoding="utf-8")


def below(text: str, heading: str) -> str:
    assert heading in text
    return text[text.index(heading) :]


TEXTS: dict[str, tuple[Callable[[Path], str], int | None]] = {
    "analyze": (lambda job: printed("analyze", str(job)), 1),
    "analyze --all": (lambda job: printed("analyze", str(job), "--all"), None),
    "analyze --findings": (lambda job: printed("analyze", str(job), "--findings"), None),
    "analyze --markdown": (lambda job: printed("analyze", str(job), "--markdown"), None),
    "advise": (lambda job: below(printed("advise", str(job)), "Findings"), None),
    "whatif": (lambda job: below(printed("whatif", str(job)), "Findings"), None),
    "view --text": (lambda job: printed("view", str(job), "--text"), None),
    "view findings": (lambda job: printed("view", str(job), "--view", "findings", "--text"), None),
    "report": (lambda job: below(page(job, "report"), '<ol class="findings">'), None),
    "page": (lambda job: below(page(job, "view"), 'id="findings"'), MOST),
}
"""What prints the list, and how many of the first are there at least; None for all."""


@pytest.mark.slow
def test_texts_have_the_list(job: Path, listed: tuple[Finding, ...]) -> None:
    """Each finding with its figure and its text, in the order of the list; what gains nothing is only named."""
    for output in TEXTS:
        print_it, most = TEXTS[output]
        first = top_findings(listed)[:most]
        if output in ("report", "page") and not first:
            continue  # nothing is listed there
        text, place = plain(print_it(job)), 0
        figure = duration if output == "page" else lambda ns: f"{milliseconds(ns)} ms"
        for finding in first:
            for part in (figure(finding.figure[0]), finding.text[:24]):
                place = text.find(part, place)
                assert place >= 0, (part, text)
        if output not in ("view findings", "page"):
            assert not [one.text for one in listed if one.is_minor and one.text[:40] in text], output


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Finding, Finding]]:
    """A job, the finding on its late rank, and another one that counts more; what the others gain, nobody knows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finding_list, "counterfactual", lambda finding, context: "Nobody knows.")
        plants = [Plant(1, "loader", 2), *(Plant(rank, "pause", 6) for rank in EVERY)]
        job = planted_job(tmp_path_factory.mktemp("counted") / "job", plants)
        found = findings_of(dptrace.open(job))
        yield job, found[0], next(one for one in found if not one.has_gain)


@pytest.mark.slow
def test_what_is_counted_does_not_pass_for_a_gain(counted: tuple[Path, Finding, Finding]) -> None:
    """However much it counts, it stands behind what gains, and in place of a figure, each output says that the gain is
    unknown; the count is called one."""
    job, late, unknown = counted
    assert late.kind == "straggler"
    assert unknown.counted_ns > late.figure[0] > 0
    for output in TEXTS:
        text = plain(TEXTS[output][0](job))
        _, said, between = text[: text.index(unknown.text[:24])].rpartition("gain unknown")

        assert said, output
        assert len(between) < 90, output  # the tags of a page
        assert ("ms" in between) == ("ms counted" in between), output


def test_little_gains_are_those_after_the_others() -> None:
    """A finding may gain much alone, of which those above it have all."""
    late = Finding("straggler", "", "", 10, 0.1, gain=Gain("level", 10, 9, 11, 10, 0.1))
    hidden = Finding("exposed_comm", "", "", 8, 0.08, gain=Gain("none", 8, 7, 9, 0, 0.0))

    assert minor_sentence([late, hidden]).startswith("Once those above are gone")
    assert minor_sentence([hidden]).startswith("A step")


LATE: dict[str, set[int | None]] = {
    "three causes": {1, 2},
    "hidden by another": {1},
    "idle": set(),
    "pipeline": {1},
    "clean": set(),
}


@pytest.mark.heavy
def test_the_list_is_of_its_job(job: Path, listed: tuple[Finding, ...]) -> None:
    """The ranks that are made late are in it, and no other. The greatest gain is first, unless a part of it is; where
    the figures rise, a sentence says why. A range is that of the gain alone: what is left of it after others may be
    below; where it is more, the range reaches up to it."""
    late = {finding.evidence.rank for finding in top_findings(listed) if finding.kind == "straggler"}
    shown = [finding for finding in top_findings(listed) if finding.has_gain]
    figures = [finding.figure[0] for finding in shown if not finding.needed]
    rises = any(after > NOTABLY_MORE * before for before, after in pairwise(figures))

    assert next(of for name, of in LATE.items() if name.replace(" ", "_") in job.parent.name) == late
    assert not shown or shown[0].figure[0] > 0
    assert rises == bool(order_sentence(listed))
    for gain in (one.gain for one in listed if one.has_gain):
        low, alone, after, high = (ns or 0 for ns in (gain.low_ns, gain.ns, gain.marginal_ns, gain.high_ns))
        assert low <= alone <= high
        assert after <= high
    (said,) = (column.doc for column in FINDINGS if column.name == "gain_low_ns")
    assert "of gain_ns" in said


OF_PART = (
    *("analyze", "analyze --all", "analyze --findings", "analyze --markdown", "analyze --json", "advise --json"),
    *("view --text", "report", "view"),
)


@pytest.mark.slow
def test_a_part_of_the_ranks_says_so(tmp_path: Path) -> None:
    """The late rank is not selected: that findings on it are left out stands in each output, in the same words."""
    job = planted_job(tmp_path / "job", [Plant(1, "loader", 5)])
    for output in OF_PART:
        verb, *options = f"{output} --ranks 0,2,3".split()
        text = plain(page(job, verb, *options) if output in ("report", "view") else printed(verb, str(job), *options))

        assert "Only ranks 0, 2, 3 are selected: findings on other ranks are left out." in text, output
        if output == "analyze":  # at the end of the list, above the table of ranks
            assert text.index("findings on other ranks") < text.index("rank forward")


@pytest.mark.heavy
def test_two_runs_in_one_folder_stand_first(tmp_path: Path) -> None:
    """Rank 1 is of a job of four ranks, rank 0 of one of two: each output begins with that."""
    job, other = (planted_job(tmp_path / str(ranks), ranks=ranks) for ranks in (2, 4))
    (job / "rank1.json").write_bytes((other / "rank1.json").read_bytes())
    for output in ("analyze", "analyze --findings", "analyze --markdown", "advise", "whatif", "view --text"):
        verb, *options = output.split()
        text = plain(printed(verb, str(job), *options))

        assert 0 <= text.find("The files are from different jobs") < 400, output


@pytest.mark.heavy
def test_without_any_straggler_a_step_gains_about_as_much(tmp_path: Path) -> None:
    """The findings on three late ranks add up to what levelling all ranks gains."""
    job = planted_job(tmp_path / "job", THREE)
    answer = json.loads(printed("whatif", str(job), "--no-straggler", "--json"))
    late = [one.figure[0] for one in findings_of(dptrace.open(job)) if one.kind == "straggler"]

    assert max(late) < answer["step_gain_ns"] == pytest.approx(sum(late), rel=0.15)


SHARED = [
    str(TRACES / "interleaved_cpu_2ranks"),
    *("dlrm_v100_4ranks", "sharded_h100_8ranks", "straggler_v100_4ranks", "nsys/mfu_2gpu_before.sqlite"),
    *(f"../inputs/plants/{name}" for name in ("chain3_mid", "mesh_opt", "pp_stage1", "two_places3")),
]


@needs_real_traces
@pytest.mark.slow
@pytest.mark.parametrize("name", SHARED)
def test_gains_of_real_recordings_add_up(name: str) -> None:
    """Those shown gain no more than all of them together, and these no more than a step."""
    recording, of_all = dptrace.open(REAL / name), 0
    found = FindingList(recording)
    listed = [finding for finding in found.found(lambda fraction: None) if finding.has_gain]
    gains, step_ns = [finding.figure[0] for finding in listed], float(recording.steps()["wall_ns"].mean())
    for some in ([one for one, _ in found.shown], [one for one, ns in found.shown if ns > 0]):
        # One that would lose something is none that gains.
        changes = list(dict.fromkeys(one.change for one in some))
        of_all = max(of_all, Measurer(replay_of_some(recording)).gain_ns(changes) if changes else 0)

    assert min(gains, default=0) >= 0
    assert sum(gains) <= of_all <= step_ns
    assert not gains or listed[0].is_minor or gains[0] > 0
