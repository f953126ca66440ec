"""``dptrace analyze`` as a user runs it."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dptrace.analysis.cross_rank.transfers import WAIT_FIGURES
from dptrace.analysis.per_gpu.split import SHOWN
from dptrace.commands.shared.main import cli
from tests.support.kineto_files import KinetoFile, training_step
from tests.support.memory_files import memory_run
from tests.support.replay_files import write_job


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    for rank in (0, 1):
        file = training_step(training_step(KinetoFile(rank=rank, world_size=3), 4, 0), 5, 100)
        file.write(folder / f"r{rank}.json.gz")
    return folder


def run(*arguments: object) -> Result:
    return CliRunner(env={"COLUMNS": "80"}).invoke(cli, ["analyze", *map(str, arguments)])


@pytest.mark.heavy
def test_the_first_screen_fits_a_terminal(folder: Path) -> None:
    """24 lines of 80 columns with the next command; the sections say the rest."""
    result, every = run(folder), run(folder, "--all").stdout

    assert 0 == result.exit_code
    assert max(map(len, (result.stdout + every).splitlines())) <= 80
    assert len(result.stdout.splitlines()) + len(result.stderr.splitlines()) <= 24
    assert "15 % exposed communication" in result.stdout
    assert "all_reduce" in result.stdout
    assert every.index("Mean step, ") < every.index("Findings") < every.index("mean step by")
    assert "ms per step" in every
    assert "rank 2" in run(folder, "--notes").stdout
    assert f"Next: dptrace view {folder}" in result.stderr


@pytest.mark.heavy
def test_a_section_is_printed_alone(folder: Path) -> None:
    """As --all prints it, below the headline; beside data it is refused."""
    every = run(folder, "--all").stdout
    for section, has, lacks in (
        ("findings", "Findings", "mean step by"),
        ("split", "mean step by rank", "Findings"),
        ("communication", "mean step by kind", "mean step by rank"),
        ("idle", "mean step by cause", "mean step by rank"),
        ("notes", "! ", "Findings"),
    ):
        text = run(folder, f"--{section}").stdout

        assert has in text, section
        assert lacks not in text, section
        assert has in every, section
        assert 2 == run(folder, f"--{section}", "--json").exit_code, section

    # Several in the order of the answer.
    text = run(folder, "--notes", "--findings").stdout

    assert 0 < text.index("Findings") < text.index("! ")
    assert "mean step by" not in text


@pytest.mark.heavy
def test_json_and_csv_stand_alone_on_stdout(folder: Path) -> None:
    """Notes go to stderr; a row of CSV is a step, or a collective; a pattern turns compute into communication."""
    result = run(folder, "--json")
    steps, calls = (
        list(csv.DictReader(io.StringIO(run(folder, "--csv", *more).stdout))) for more in ([], ["--collectives"])
    )

    assert 10_000 == json.loads(result.stdout)["ranks"][1]["steps"][0]["overlapped_comm_ns"]
    assert "rank 2" in result.stderr
    assert (4, ["rank", "device", "step", "step_number", *SHOWN, *WAIT_FIGURES]) == (len(steps), list(steps[0]))
    assert ("all_reduce", "15000") == (calls[0]["kind"], calls[0]["exposed_ns"])
    counted = json.loads(run(folder, "--json", "--comm-pattern", "^gemm_backward$").stdout)
    assert 0 == counted["ranks"][0]["steps"][0]["backward_ns"]


@pytest.mark.heavy
def test_more_is_printed_where_it_is_asked_for(folder: Path) -> None:
    """Kernels, each collective, and memory, or how to record it."""
    plain = run(folder).stdout
    for option, fact in (
        ("--all", "gemm_backward"),
        ("--collectives", "all_reduce"),
        ("--memory", "dptrace record --memory"),
    ):
        assert fact in " ".join(run(folder, option).stdout.split()), (option, fact)
        if option != "--collectives":
            assert fact not in plain, (option, fact)


@pytest.mark.heavy
def test_a_kernel_of_symmetric_memory_communicates(tmp_path: Path) -> None:
    """It has no metadata: its kind and that it synchronizes are known from its name, its bytes are unknown, not 0."""
    name = "void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*, unsigned long)"
    for rank in (0, 1):
        file = KinetoFile(rank=rank, world_size=2).label("ProfilerStep#0", 0, 100)
        file.kernel("gemm", 10, 30, 5).kernel(name, 20 + 10 * rank, 50, 6, stream=8)
        file.kernel("void deep_ep::layout::get_dispatch_layout<256>(int*)", 60, 70, 7).write(tmp_path / f"r{rank}.json")
    result = run(tmp_path, "--json")
    data = json.loads(result.stdout)
    (first, second), (matched,) = (rank["steps"][0] for rank in data["ranks"]), data["collectives"]
    kinds = [rank["collectives"][0] for rank in data["ranks"]]

    assert [(20_000, 10_000), (20_000, 0)] == [(s["exposed_comm_ns"], s["overlapped_comm_ns"]) for s in (first, second)]
    assert 30_000 == first["compute_ns"]  # the layout is computed
    assert {"count": 1, "bytes": None} == {key: first["comm"]["all_reduce"][key] for key in ("count", "bytes")}
    assert [("all_reduce", None)] * 2 == [(c["kind"], c["bytes"]) for c in kinds]
    assert ("all_reduce", None, None, 20_000) == tuple(
        matched[k] for k in ("kind", "bytes", "busbw_gbps", "transfer_ns")
    )
    assert [10_000, 0] == [member["wait_ns"] for member in matched["members"]]
    assert "0 B" not in run(tmp_path).stdout
    assert "0 B" not in run(tmp_path, "--collectives").stdout


def test_htas_figures_are_given_by_our_own_code(tmp_path: Path) -> None:
    """--hta-compat is a table, CSV or JSON."""
    path = str(training_step(training_step(KinetoFile(), 1, 0), 2, 100).write(tmp_path / "r0.json"))
    forms: tuple[list[str], ...] = ([], ["--csv"], ["--json"])
    table, rows, data = (CliRunner().invoke(cli, ["analyze", path, "--hta-compat", *form]) for form in forms)

    assert (0, 0, 0) == (table.exit_code, rows.exit_code, data.exit_code)
    assert "idle_time(us)" in rows.stdout.splitlines()[0]
    assert json.loads(data.stdout)


@pytest.mark.heavy
def test_memory_has_tables_csv_and_json(tmp_path: Path) -> None:
    """What was alive at the peak; the peak of each step and phase as CSV; all of it in the document of --json."""
    path = memory_run(tmp_path)
    tables, rows, data, plain = (
        run(path, "-q", *form) for form in (["--memory"], ["--memory", "--csv"], ["--memory", "--json"], ["--json"])
    )

    assert "optimizer state" in tables.stdout
    assert "rank,device,step,step_number,phase,peak_bytes,reserved_bytes" == rows.stdout.splitlines()[0]
    assert [1340, 1340] == [device["peak"]["bytes"] for device in json.loads(data.stdout)["memory"]]
    assert "memory" not in json.loads(plain.stdout)


@pytest.mark.heavy
def test_findings_say_what_a_step_would_gain(tmp_path: Path) -> None:
    """A kernel makes rank 1 late in every step: one finding, with what a step gains without it."""
    write_job(tmp_path)
    first, *others = json.loads(run(tmp_path, "--json").stdout)["findings"]

    assert "Gains 100 µs a step" in run(tmp_path, "--findings").stdout
    assert ("straggler", 1, 100_000) == (first["kind"], first["evidence"]["rank"], first["gain_next_ns"])
    assert "straggler" not in {finding["kind"] for finding in others}


def test_clocks_left_as_they_are_have_no_gains(tmp_path: Path) -> None:
    """A replay would correct them; what was measured stays, and the reason is said."""
    write_job(tmp_path)
    found = json.loads(run(tmp_path, "--no-align", "--json").stdout)["findings"]

    assert found
    assert all(finding["gain_ns"] is None and "own clocks" in finding["gain_reason"] for finding in found)
