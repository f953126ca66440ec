"""`dptrace links`: what is refused before any process is started, and what is shown of a result that is there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from dptrace.bench import links
from dptrace.bench.links import LinksRequest, read_links
from dptrace.commands.shared.main import cli
from dptrace.model.collectives import KINDS
from tests.support.links_samples import report_text


@pytest.fixture
def result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A measurement in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("COLUMNS", "132")
    path = tmp_path / "links.json"
    path.write_text(report_text())
    return path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["links", *arguments])


@pytest.mark.heavy
def test_wrong_use_is_refused_in_a_line(result: Path) -> None:
    """Before anything is started or written."""
    pytest.importorskip("torch")
    for arguments, says in (
        (["--collectives", "all-reduce,barrier"], "choose from all-reduce, all-gather"),
        (["--collectives", ","], "choose from all-reduce"),
        (["--algorithms", "bruck"], "choose from ring, tree"),
        (["--algorithms", "ring", "--ranks-per-node", "2"], "--ranks-per-node 2: is for --algorithms hierarchical"),
        (["--algorithms", "all", "--ranks-per-node", "5", "--gpus", "4"], "there are only 4 ranks"),
        (["--from", "links.json", "--algorithms", "all"], "--algorithms is for measuring"),
        (["--min-bytes", "2MB", "--max-bytes", "1MB"], "--min-bytes 2,097,152 is more than --max-bytes 1,048,576"),
        (["--min-bytes", "12", "--gpus", "4"], "at least 16"),
        (["--min-bytes", "many"], "'many' is not a size"),
        (["--max-bytes", "0"], "'0' must be from 1"),
        (["--budget", "0"], "Invalid value for '--budget'"),
        (["--gpus", "1"], "CUDA_VISIBLE_DEVICES= dptrace links --gpus 2"),
        (["--nnodes", "2"], "--nnodes needs --node-rank"),
        (["--node-rank", "1"], "add --nnodes"),
        (["--nnodes", "2", "--node-rank", "2", "--rdzv-endpoint", "a:1"], "from 0 to 1"),
        (["-o", "nowhere/links.json"], "does not exist"),
        (["-o", "links.json"], "links.json already exists; --force"),
        (["--from", "links.json", "--budget", "3"], "--budget is for measuring"),
        (["--from", "links.json", "-o", "other.json"], "-o other.json is for measuring"),
    ):
        out = ["-o", "new.json"] if "-o" not in arguments and "--from" not in arguments else []
        done = run(*arguments, *out)

        assert 2 == done.exit_code, (arguments, says)
        assert says in done.output, (arguments, says)
        assert ["links.json"] == os.listdir(result.parent), (arguments, says)


@pytest.mark.heavy
def test_the_ranks_learn_what_was_asked(result: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Collectives in any order and spelling, all by default; algorithms add what they are compared with. Sizes are in
    powers of 1024, as nccl-tests reads them."""
    asked: list[LinksRequest] = []
    monkeypatch.setattr(links, "measure_links", lambda request, progress: asked.append(request))
    for arguments, kinds, size, count in (
        (["--collectives", "p2p, All-Reduce,all_reduce"], ["all_reduce", "send_recv"], "4096", 4096),
        ([], list(KINDS), "4 KiB", 4096),
        (["--algorithms", "ring"], ["all_reduce", "send_recv"], "4kb", 4096),
        (
            ["--collectives", "broadcast", "--algorithms", "all"],
            ["all_reduce", "broadcast", "send_recv"],
            "1M",
            1 << 20,
        ),
    ):
        done = run(*arguments, "--min-bytes", size, "-o", "new.json")

        assert 0 == done.exit_code, done.output
        assert (kinds, count) == (list(asked[-1].collectives), asked[-1].min_bytes), arguments
        assert bool(asked[-1].algorithms) == ("--algorithms" in arguments), arguments


@pytest.mark.heavy
def test_without_torch_the_package_to_install_is_named(result: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a line."""
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    done = run("-o", "new.json")

    assert 1 == done.exit_code
    assert "pip install 'torch>=2.4'" in done.output


@pytest.mark.heavy
def test_a_result_is_shown_as_a_table_as_json_and_as_a_page(result: Path) -> None:
    """Without measuring; the JSON is the file's."""
    shown = run("--from", "links.json")
    assert 0 == shown.exit_code
    assert "point-to-point" in shown.output
    assert "Next: dptrace links --from links.json -o links.html" in shown.output

    assert read_links(result) == json.loads(run("--from", "links.json", "--json", "-q").output)
    assert 0 == run("--from", "links.json", "-o", "links.html").exit_code
    assert "Measured links" in (result.parent / "links.html").read_text()


@pytest.mark.heavy
def test_a_file_from_elsewhere_is_shown_or_refused(result: Path) -> None:
    """The name of a collective is text, also where the terminal's library would take it for markup; a figure that is
    missing is named with its file."""
    content = json.loads(result.read_text())
    content["collectives"] = {"[/b]": content["collectives"]["all_reduce"]}
    result.write_text(json.dumps(content))
    shown = run("--from", "links.json")
    del content["collectives"]["[/b]"]["busbw_gbps"]
    result.write_text(json.dumps(content))
    refused = run("--from", "links.json", "-o", "links.html")

    assert 0 == shown.exit_code
    assert "[/b]" in shown.output
    assert 1 == refused.exit_code
    assert "links.json: " in refused.output
    assert "busbw_gbps" in refused.output
    assert not (result.parent / "links.html").exists()
