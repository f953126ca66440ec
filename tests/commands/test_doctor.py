"""``dptrace doctor`` on the command line."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

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


@pytest.mark.parametrize(
    ("gpus", "links", "facts"),
    [
        (
            4,
            {f"{a}-{b}": "NV12" for a in range(4) for b in range(a + 1, 4)},
            [
                *("GPU 3 NVIDIA A100 80GB PCIe, 79.3 GiB", "links NV12 between all GPUs (NVLink)"),
                *("driver NVIDIA 550.54.15, 4 GPUs", "backends NCCL 2.20.5, gloo yes"),
                *("yes dptrace record --gpus 4: 4 GPUs with NCCL", "Next: dptrace record --mode interleaved --gpus 4"),
            ],
        ),
        (3, {"0-1": "NV4", "0-2": "SYS", "1-2": "SYS"}, ["links NV4 (NVLink): 0-1; SYS (PCIe): 0-2 1-2"]),
        (1, {}, ["Next: dptrace record --mode single --gpus 1"]),
    ],
)
def test_a_machine_is_described(
    gpus: int, links: dict[str, str], facts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each GPU with name and memory, the links by kind, versions, and a command that works there."""
    monkeypatch.setattr(environment, "examine", lambda: report(gpus, links))
    result = CliRunner().invoke(cli, ["doctor"])

    assert 0 == result.exit_code
    assert all(fact in " ".join(result.output.split()) for fact in facts), result.output


def test_this_machine() -> None:
    """The real machine's report is plain text when piped, and the same facts as JSON."""
    runner = CliRunner()
    text, data = runner.invoke(cli, ["doctor"]), runner.invoke(cli, ["doctor", "--json"])

    assert (0, 0) == (text.exit_code, data.exit_code)
    assert "\x1b" not in text.output
    facts = json.loads(data.output)
    assert facts["executable"] in text.output
    assert all(verdict["why"] in text.output for verdict in facts["verdicts"])


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


@pytest.mark.parametrize(
    ("verdicts", "code", "facts", "missing"),
    [
        (
            (OK, SLOW),
            0,
            ["GPU 1 NVIDIA A100", "ok kernels: 4,000 or more on each GPU.", "warning overhead: steps take 80 %"],
            "kept",
        ),
        ((WRONG, SLOW), 1, ["wrong kernels: rank 1 recorded no kernel.", "/tmp/dptrace-selftest-x"], "Next:"),
    ],
)
def test_a_selftest_is_a_line_for_each_check(
    verdicts: tuple[Verdict, ...], code: int, facts: list[str], missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warning is no failure; otherwise the exit code is 1, the recording is kept, and no command is suggested."""
    result = run_selftest(monkeypatch, *verdicts)
    content = json.loads(run_selftest(monkeypatch, *verdicts, option="--selftest --json -q").output)

    assert code == result.exit_code
    assert all(fact in " ".join(result.output.split()) for fact in facts), result.output
    assert missing not in result.output
    assert content["torch"]["gpus"]
    assert (code == 0) == content["selftest"]["works"]
    assert [asdict(verdict) for verdict in verdicts] == content["selftest"]["verdicts"]


def test_nothing_to_test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no recording can work, the self-test says so instead of failing at it."""
    bare = replace(report(0, {}), torch=None, torch_problem="it is not installed")
    monkeypatch.setattr(environment, "examine", lambda: replace(bare, verdicts=judge(bare)))

    result = CliRunner().invoke(cli, ["doctor", "--selftest"])

    assert 1 == result.exit_code
    assert "pip install" in result.stderr
