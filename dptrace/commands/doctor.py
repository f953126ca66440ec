"""``dptrace doctor``: what this machine has, and what will work on it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from dptrace.commands.shared.answer import JSON, TEXT, Answer, Destination, answer_options
from dptrace.commands.shared.options import quiet_option
from dptrace.commands.shared.output import print_hint
from dptrace.core.units import for_terminal, plural, sanitize
from dptrace.errors import DptraceError

if TYPE_CHECKING:
    from dptrace.doctor.environment import Report, Torch
    from dptrace.doctor.selftest import SelfTest

_INDENT = 10
"""Blanks before the further lines of a fact, as wide as its name."""


@click.command()
@click.option("--selftest", "with_selftest", is_flag=True, help="Record for about 10 s, and check the recording.")
@answer_options()
@quiet_option
def command(with_selftest: bool, to: Destination, verbosity: str) -> None:
    """Check Python, torch, GPUs, their driver and links, NCCL and gloo, and list what will work.

    The exit code is 0 even if something is missing, and 1 only if dptrace's own dependencies can't be imported.

    With --selftest, dptrace also records a small training, on up to two GPUs or on two ranks on CPU, checks that the
    recording is complete, and says what is wrong and what to do. The exit code is then 1 if anything is wrong, and the
    recording is kept; otherwise it is removed.

    \b
    Examples:
      dptrace doctor
      dptrace doctor --selftest
      dptrace doctor --json | jq .torch.gpus
      dptrace doctor -o environment.txt
    """
    from dptrace.doctor.environment import examine

    report = examine()
    test = _selftest(report, verbosity) if with_selftest else None
    content = {"schema": 1, **asdict(report)} | ({"selftest": asdict(test) | {"works": test.works}} if test else {})
    lines = [*_lines(report), *(_selftest_lines(test) if test else ())]
    if to.on_terminal:
        lines = [for_terminal(line, sys.stdout, _INDENT) for line in lines]
    # As text: a package that makes tables or JSON may be what is broken.
    to.write(Answer({TEXT: "\n".join(lines) + "\n", JSON: json.dumps(content, indent=1) + "\n"}))
    if to.as_text and (test is None or test.works):
        print_hint(f"Next: {_next(report)}", verbosity)
    if report.broken or (test is not None and not test.works):
        raise SystemExit(1)


def _selftest(report: Report, verbosity: str) -> SelfTest:
    """Run the self-test; refuse where no recording can work at all."""
    from dptrace.doctor.selftest import recording_command, selftest

    if not report.records:
        reasons = "; ".join(verdict.why for verdict in report.verdicts if "record" in verdict.what)
        raise DptraceError(f"There is nothing to test, because no recording works here: {reasons}.")
    gpus = len(report.torch.gpus) if report.torch else 0
    print_hint(f"Recording for about 10 s: dptrace {' '.join(recording_command(gpus))}", verbosity)
    return selftest(gpus)


def _selftest_lines(test: SelfTest) -> Iterator[str]:
    colors = {"ok": "green", "warning": "yellow", "wrong": "red"}
    yield ""
    yield f"Self-test, {test.seconds:.0f} s: {' '.join(test.command)}"
    for verdict in test.verdicts:
        mark = click.style(f"{verdict.level:<7}", fg=colors[verdict.level], bold=True)
        yield f"{mark}  {click.style(verdict.what, bold=True)}: {sanitize(verdict.why)}."
    if test.kept:
        yield f"Recording and log are kept in {test.kept}."


def _lines(report: Report) -> Iterator[str]:
    for name, text in _facts(report):
        yield f"{name:<{_INDENT}}{text}"
    yield ""
    for verdict in report.verdicts:
        mark = click.style("yes", fg="green", bold=True) if verdict.works else click.style("no ", fg="red", bold=True)
        yield f"{mark}  {click.style(verdict.what, bold=True)}: {verdict.why}."


def _next(report: Report) -> str:
    """Return the first command to try on this machine."""
    if report.broken:
        from dptrace.doctor.environment import reinstall_command

        return reinstall_command(report)
    if not report.records:
        return "dptrace analyze TRACE"
    gpus = len(report.torch.gpus) if report.torch else 0
    return f"dptrace record --mode {'single' if gpus == 1 else 'interleaved'} --gpus {gpus or 2}"


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    yield "dptrace", f"{report.dptrace}, Python {report.python} ({report.executable})"
    yield "machine", f"{report.platform}, {plural(report.cpus, 'CPU core')}"
    if report.torch is None:
        yield "torch", f"missing: {report.torch_problem}"
    else:
        yield from _torch_facts(report.torch)
    if report.driver:
        yield "driver", f"NVIDIA {report.driver}, {plural(report.driver_gpus, 'GPU')}"
    if report.links:
        yield "links", _links(report.links)
    yield "packages", ", ".join(f"{name} {version}" for name, version in report.versions.items())
    yield "browser", report.browser or "Chromium not found"


def _torch_facts(torch: Torch) -> Iterator[tuple[str, str]]:
    yield (
        "torch",
        f"{torch.version}, built for {torch.built_for}; its profiler records {' and '.join(torch.activities)}",
    )
    backend = f"{torch.backend.upper()} {torch.backend_version or ('missing' if torch.gpus else 'not used')}"
    yield "backends", f"{backend}, gloo {'yes' if torch.gloo else 'missing'}"
    if not torch.gpus:
        yield "GPUs", f"none{': ' + torch.problem if torch.problem else ''}"
    for gpu in torch.gpus:
        yield f"GPU {gpu.index}", f"{gpu.name}, {gpu.memory_bytes / 2**30:.1f} GiB"


def _links(links: dict[str, str]) -> str:
    """Summarize the links: one entry when all are of one kind.

    NV and a number are parallel NVLinks; PIX, PXB, PHB, NODE and SYS are PCIe, from nearest to farthest.
    """
    kinds = sorted(set(links.values()))
    if len(kinds) == 1:
        return f"{kinds[0]} between all GPUs ({_kind(kinds[0])})"
    return "; ".join(
        f"{kind} ({_kind(kind)}): {' '.join(pair for pair, link in links.items() if link == kind)}" for kind in kinds
    )


def _kind(link: str) -> str:
    return "NVLink" if link.startswith("NV") else "PCIe"
