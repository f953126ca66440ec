"""``dptrace doctor``: what is here, and what will therefore work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from dptrace.environment import Report, Torch


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
def command(as_json: bool) -> None:
    """Check Python, torch, GPUs, their driver and links, NCCL and gloo, and say what will work.

    The exit code is 0 whatever is missing, and 1 only when dptrace's own packages can't be imported.

    \b
    Examples:
      dptrace doctor
      dptrace doctor --json | jq .torch.gpus
    """
    from dptrace.environment import examine

    report = examine()
    if as_json:
        # The standard library's, for msgspec is among what may be broken.
        import json
        from dataclasses import asdict

        click.echo(json.dumps(asdict(report), indent=1))
    else:
        for name, text in _facts(report):
            click.echo(f"{name:<9} {text}")
        click.echo()
        for verdict in report.verdicts:
            mark = (
                click.style("yes", fg="green", bold=True) if verdict.works else click.style("no ", fg="red", bold=True)
            )
            click.echo(f"{mark}  {click.style(verdict.what, bold=True)}: {verdict.why}.")
        click.echo(f"Next: {_next(report)}")
    if report.broken:
        raise SystemExit(1)


def _next(report: Report) -> str:
    """Give the first command to type on a machine like this."""
    if report.broken:
        return "pip install --force-reinstall dptrace"
    if not any(verdict.works and "record" in verdict.what for verdict in report.verdicts):
        return "dptrace analyze TRACE"
    gpus = len(report.torch.gpus) if report.torch else 0
    return f"dptrace record --mode {'single' if gpus == 1 else 'interleaved'} --gpus {gpus or 2}"


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    yield "dptrace", f"{report.dptrace}, Python {report.python} ({report.executable})"
    yield "machine", f"{report.platform}, {report.cpus} CPU core{'s' if report.cpus > 1 else ''}"
    if report.torch is None:
        yield "torch", f"none: {report.torch_problem}"
    else:
        yield from _torch_facts(report.torch)
    if report.driver:
        yield "driver", f"NVIDIA {report.driver}, {report.driver_gpus} GPU{'s' if report.driver_gpus > 1 else ''}"
    if report.links:
        yield "links", _links(report.links)
    yield "packages", ", ".join(f"{name} {version}" for name, version in report.versions.items())
    yield "browser", report.browser or "no chromium found"


def _torch_facts(torch: Torch) -> Iterator[tuple[str, str]]:
    yield (
        "torch",
        f"{torch.version}, built for {torch.built_for}; its profiler records {' and '.join(torch.activities)}",
    )
    yield "backends", f"NCCL {torch.nccl or 'none'}, gloo {'yes' if torch.gloo else 'none'}"
    if not torch.gpus:
        yield "GPUs", f"none{': ' + torch.problem if torch.problem else ''}"
    for gpu in torch.gpus:
        yield f"GPU {gpu.index}", f"{gpu.name}, {gpu.memory_bytes / 2**30:.1f} GiB"


def _links(links: dict[str, str]) -> str:
    """Tell the links shortly: one word when all are alike.

    NV and a number are NVLinks side by side; PIX, PXB, PHB, NODE and SYS are PCIe, from nearest to farthest.
    """
    kinds = sorted(set(links.values()))
    if len(kinds) == 1:
        return f"{kinds[0]} between all GPUs ({_kind(kinds[0])})"
    return "; ".join(
        f"{kind} ({_kind(kind)}): {' '.join(pair for pair, link in links.items() if link == kind)}" for kind in kinds
    )


def _kind(link: str) -> str:
    return "NVLink" if link.startswith("NV") else "PCIe"
