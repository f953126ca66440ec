"""``dptrace doctor`` on the command line."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from click.testing import CliRunner, Result

from dptrace.commands.shared.main import cli
from dptrace.doctor import environment, selftest
from dptrace.doctor.environment import Gpu, Report, Torch, judge
from dptrace.doctor.selftest import SelfTest, Verdict


def report(gpus: int, links: dict[str, str]) -> Report:
    """Return the report of a machine with *gpus* GPUs."""
    torch = Torch(
        "2.4.1+cu124",
        "CUDA 12.4",
        tuple(Gpu(k, "NVIDIA A100 80GB PCIe", 85_100_000_000) for k in range(gpus)),
        "2.20.5",
        gloo=True,
        activities=("CPU", "CUDA"),
    )
    report = Report(
        *("0.1.0", "3.12.1", "/usr/bin/python", "Linux", 32, torch, ""),
        driver="550.54.15",
        driver_gpus=gpus,
        links=links,
        versions={},
        broken={},
        browser="",
    )
    return replace(report, verdicts=judge(report))


def printed(monkeypatch: pytest.MonkeyPatch, made_up: Report) -> str:
    """Run the command on a made-up machine."""
    monkeypatch.setattr(environment, "examine", lambda: made_up)
    result = CliRunner().invoke(cli, ["doctor"])
    assert 0 == result.exit_code
    return result.output


def test_four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each GPU has its line with name and memory; links, versions and the command to type are told."""
    pairs = {f"{a}-{b}": "NV12" for a in range(4) for b in range(a + 1, 4)}

    out = printed(monkeypatch, report(4, pairs))

    assert "GPU 3     NVIDIA A100 80GB PCIe, 79.3 GiB" in out
    assert "links     NV12 between all GPUs (NVLink)" in out
    assert "driver    NVIDIA 550.54.15, 4 GPUs" in out
    assert "backends  NCCL 2.20.5, gloo yes" in out
    assert "yes  dptrace record --gpus 4: 4 GPUs with NCCL 2.20.5" in out
    assert "Next: dptrace record --mode interleaved --gpus 4" in out


def test_mixed_links(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where links differ, each kind lists its pairs."""
    out = printed(monkeypatch, report(3, {"0-1": "NV4", "0-2": "SYS", "1-2": "SYS"}))

    assert "links     NV4 (NVLink): 0-1; SYS (PCIe): 0-2 1-2" in out


def test_one_gpu_is_sent_to_single(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one GPU the next command is one that works there."""
    assert "Next: dptrace record --mode single --gpus 1" in printed(monkeypatch, report(1, {}))


def test_this_machine() -> None:
    """The real machine's report is plain text when piped, and the same facts as JSON."""
    runner = CliRunner()
    text, data = runner.invoke(cli, ["doctor"]), runner.invoke(cli, ["doctor", "--json"])

    assert (0, 0) == (text.exit_code, data.exit_code)
    assert "\x1b" not in text.output
    facts = json.loads(data.output)
    assert facts["executable"] in text.output
    assert all(verdict["why"] in text.output for verdict in facts["verdicts"])


def test_help_has_an_example() -> None:
    """--help ends with what to type."""
    assert "dptrace doctor --json | jq" in CliRunner().invoke(cli, ["doctor", "--help"]).output


def run_selftest(monkeypatch: pytest.MonkeyPatch, *verdicts: Verdict, option: str = "--selftest") -> Result:
    """Run the command with a made-up self-test on a machine with two GPUs."""
    kept = "/tmp/dptrace-selftest-x" if any(verdict.level == "wrong" for verdict in verdicts) else ""
    test = SelfTest(("dptrace", "record", "--mode", "ddp"), verdicts, 9.6, kept)
    monkeypatch.setattr(environment, "examine", lambda: report(2, {"0-1": "NV12"}))
    monkeypatch.setattr(selftest, "selftest", lambda gpus: test)
    return CliRunner().invoke(cli, ["doctor", *option.split()])


OK = Verdict("kernels", "ok", "4,000 or more on each GPU")
SLOW = Verdict("overhead", "warning", "steps take 80 % longer")
WRONG = Verdict("kernels", "wrong", "rank 1 recorded no kernel")


def test_a_selftest_that_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each check is a line after the machine's facts; a warning is no failure."""
    result = run_selftest(monkeypatch, OK, SLOW)

    assert 0 == result.exit_code
    assert "GPU 1     NVIDIA A100" in result.output
    assert "ok       kernels: 4,000 or more on each GPU." in result.output
    assert "warning  overhead: steps take 80 % longer." in result.output
    assert "kept" not in result.output


def test_a_selftest_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exit code is 1, the recording is kept and named, and no command is suggested that would fail too."""
    result = run_selftest(monkeypatch, WRONG, SLOW)

    assert 1 == result.exit_code
    assert "wrong    kernels: rank 1 recorded no kernel." in result.output
    assert "/tmp/dptrace-selftest-x" in result.output
    assert "Next:" not in result.output


def test_a_selftest_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """--json holds the facts and the verdicts; the exit code is the same."""
    result = run_selftest(monkeypatch, WRONG, option="--selftest --json -q")

    content = json.loads(result.output)
    assert 1 == result.exit_code
    assert content["torch"]["gpus"]
    assert not content["selftest"]["works"]
    assert [{"what": "kernels", "level": "wrong", "why": "rank 1 recorded no kernel"}] == content["selftest"][
        "verdicts"
    ]


def test_nothing_to_test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no recording can work, the self-test says so instead of failing at it."""
    bare = replace(report(0, {}), torch=None, torch_problem="it is not installed")
    monkeypatch.setattr(environment, "examine", lambda: replace(bare, verdicts=judge(bare)))

    result = CliRunner().invoke(cli, ["doctor", "--selftest"])

    assert 1 == result.exit_code
    assert "pip install" in result.stderr
