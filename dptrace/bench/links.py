"""Start the ranks that measure the links, collect their measurement, and read it from a file."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeVar, cast

import msgspec

from dptrace.bench.store import read_json
from dptrace.core.files import note_inputs
from dptrace.errors import DptraceError, RecordingError, UsageError
from dptrace.model.training.communication import Link
from dptrace.record.failures import find_failure, last_lines
from dptrace.record.launch.torchrun import Launch, run_torchrun
from dptrace.record.processes import catch_signals

# The schema of links.json, so that a file that was edited or made elsewhere is refused before it is drawn.


_Amount = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
_Number = Annotated[float, msgspec.Meta(ge=-1e18, le=1e18)]
_Positive = Annotated[float, msgspec.Meta(gt=0, le=1e18)]
_Bytes = Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
_Text = Annotated[str, msgspec.Meta(max_length=1000)]


class _Timed(msgspec.Struct):
    """One size of a collective or an algorithm."""

    bytes: _Bytes
    count: _Count
    median_s: _Positive
    quarter_s: _Positive
    three_quarters_s: _Positive


class _Row(_Timed):
    busbw_gbps: _Positive
    fitted_s: _Number | msgspec.UnsetType = msgspec.UNSET


class _Prediction(_Timed):
    predicted_s: _Amount | None


class _Fit(msgspec.Struct):
    alpha_s: _Number
    alpha_range_s: tuple[_Number, _Number]
    beta_s_per_byte: _Number
    beta_range_s_per_byte: tuple[_Number, _Number]
    crossover_bytes: _Amount | None
    crossover_s: _Amount | None
    r2: _Number | None
    r2_above: _Number | None
    deviation: _Amount
    r2_pieces: _Number | None
    pieces: list[Any]


class _Link(msgspec.Struct):
    algorithm: _Text
    formula: _Text
    assumed: bool
    alpha_s: _Number
    beta_s_per_byte: _Number
    bandwidth_gbps: _Number | None


class _Collective(msgspec.Struct):
    counted: _Text
    algbw_gbps: _Amount
    busbw_gbps: _Amount
    busbw_at_bytes: _Bytes
    fit: _Fit | None
    link: _Link | None
    measured: Annotated[list[_Row], msgspec.Meta(min_length=1)]


class _Nearest(msgspec.Struct):
    by: _Text
    name: _Text
    bytes_per_s: _Positive
    bandwidth_ratio: _Amount
    latency_ratio: _Amount | None
    remark: _Text


class _NumaNode(msgspec.Struct):
    node: _Text
    cores: _Text


class _Machine(msgspec.Struct):
    host: _Text
    cores: _Count
    numa: list[_NumaNode]
    gpu_links: dict[str, _Text] | None = None


class _Versions(msgspec.Struct):
    torch: _Text
    nccl: _Text | None = None


class _Algorithm(msgspec.Struct):
    formula: _Text
    hops: _Amount
    share: _Amount
    adds: _Amount
    sent_share: _Amount
    total_share: _Amount
    deviation: _Amount | None
    measured: Annotated[list[_Prediction], msgspec.Meta(min_length=1)]


class _Crossover(msgspec.Struct):
    below: _Text
    above: _Text
    bytes: _Positive


class _Algorithms(msgspec.Struct):
    ranks_per_node: _Count
    alpha_s: _Number | None
    beta_s_per_byte: _Number | None
    gamma_s_per_byte: _Number | None
    crossovers: list[_Crossover]
    all_reduce: dict[str, _Algorithm]


class _Links(msgspec.Struct):
    backend: _Text
    ranks: _Count
    nodes: _Count
    rounds: _Count
    seconds: _Amount
    statistic: _Text
    versions: _Versions
    machines: list[_Machine]
    gpus: list[_Text | None]
    notes: list[str]
    busbw_gbps: _Amount | None
    busbw_gbps_by_kind: dict[str, _Amount]
    nearest: _Nearest | None
    collectives: dict[str, _Collective]
    algorithms: _Algorithms | None = None
    """Of ``--algorithms``; older files have none."""


def check_links(content: dict[str, Any]) -> str:
    """Return what is wrong with the contents of a links.json, with the place in it; empty if nothing is."""
    try:
        links = msgspec.convert(content, _Links)
    except msgspec.ValidationError as error:
        return str(error)
    for kind, found in links.collectives.items():
        if (found.fit is None) != (found.link is None):
            return f"{kind} needs both `fit` and `link`, or neither"
    return ""


MEASURED = "measured.json"
"""The file in which the ranks leave their measurement."""
_USAGE_EXIT_CODE = 2
"""Of a launcher whose options are wrong."""
_BUSY = 0.5
"""Load per core above which a note says that other processes keep the machine busy."""


@dataclass(frozen=True, slots=True)
class LinksRequest:
    """What to measure, and among which processes."""

    collectives: Sequence[str]
    min_bytes: int
    max_bytes: int
    budget_s: float
    processes: int
    """Number of processes on this machine."""
    nnodes: int = 1
    node_rank: int = 0
    endpoint: str | None = None
    algorithms: Sequence[str] = ()
    """Of an all-reduce, written with send and receive: names of ``ALL_REDUCES``."""
    ranks_per_node: int | None = None
    """For the hierarchical one."""


def measure_links(request: LinksRequest, progress: Callable[[int, int], None]) -> dict[str, Any] | None:
    """Measure with torchrun and return the times; None on machines other than the first.

    Raises:
        RecordingError: a rank died; the message names the rank, the reason, and its last lines.
        UsageError: no rank can start with these options.
        Interrupted: a signal arrived; all processes are stopped and no file is left.
    """
    if request.node_rank == 0 and request.endpoint is not None:
        check_endpoint(request.endpoint)
    busy = _busy_machine_notes()
    with tempfile.TemporaryDirectory(prefix="dptrace-links-") as name:
        folder = Path(name)
        job = Launch(
            out=folder,
            force=False,
            script=Path("-m"),  # run as a module: as a file, its folder would come first on Python's path
            arguments=["dptrace.bench.measure_links", msgspec.json.encode(request).decode()],
            processes=request.processes,
            mode="links",
            nnodes=request.nnodes,
            node_rank=request.node_rank,
            endpoint=request.endpoint,
            show_output=False,
            command=sys.argv,
        )

        def show_progress(agent: int) -> bool:
            with suppress(OSError, ValueError):
                done, total = map(int, (folder / "progress").read_text().split())
                progress(done, total)
            return False

        with catch_signals() as signals:
            code = run_torchrun(job, folder, signals, show_progress)
        _raise_failure(folder, code or 0)
        if request.node_rank:
            return None
        with suppress(OSError, ValueError):
            measurement: dict[str, Any] = json.loads((folder / MEASURED).read_text(encoding="utf-8"))
            return measurement | {"notes": [*busy, *measurement["notes"]]}
        raise RecordingError("the ranks ended without an error, but wrote no measurement.")


def _busy_machine_notes() -> list[str]:
    """Return a note where other processes keep this machine busy, which makes times longer."""
    load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, os.cpu_count() or 1
    if load <= _BUSY * cores:
        return []
    return [
        f"Other processes were busy on this machine ({cores} cores, load {load:.1f}): times are longer and vary more."
    ]


def _raise_failure(folder: Path, code: int) -> None:
    failure = find_failure(folder)
    if failure is None:
        if code:
            raise RecordingError(f"torchrun ended with exit code {code}; nothing was measured.")
        return
    if failure.is_user_error:
        raise UsageError(failure.message) if failure.exit_code == _USAGE_EXIT_CODE else RecordingError(failure.message)
    lines = last_lines(folder / f"rank{failure.rank}.log")
    raise RecordingError(f"{failure}. Nothing was measured.{lines}")


def check_endpoint(endpoint: str) -> None:
    """Check that this machine can listen at an address, since torchrun reports it with a long traceback.

    Raises:
        UsageError: see :func:`check_address`; or the port is taken, or the address belongs to another machine.
    """
    family, kind, protocol, _, address = check_address(endpoint)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            raise UsageError(
                f"--rdzv-endpoint {endpoint}: this machine cannot listen there: {error.strerror}. Choose another "
                "port, or an address of this machine."
            ) from None


def check_address(endpoint: str) -> list[tuple[Any, ...]]:
    """Check an address and return the result of socket.getaddrinfo.

    Raises:
        UsageError: it is not HOST:PORT, or the host is unknown.
    """
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UsageError(f"--rdzv-endpoint {endpoint}: give HOST:PORT, such as node0:29500.")
    try:
        return [*socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not a valid name"
        raise UsageError(f"--rdzv-endpoint {endpoint}: unknown host {host}: {why}.") from None


def read_links(path: Path) -> dict[str, Any]:
    """Read a file of ``dptrace links -o``.

    Raises:
        DptraceError: it can't be read, or is another kind of file.
        UsageError: it is also the command's output.
    """
    note_inputs([path])
    content = read_json(path)
    whole = isinstance(content.get("collectives"), dict) and "busbw_gbps" in content
    if not whole or content.get("kind") != "links":
        raise DptraceError(f"{path}: contains no measurement of links; write one with: dptrace links -o {path}")
    if content.get("schema") != 1:
        raise DptraceError(
            f"{path}: has schema {content.get('schema')!r}, but this dptrace reads schema 1. Measure again."
        )
    if wrong := check_links(content):
        raise DptraceError(f"{path}: is not as dptrace links wrote it: {wrong}. Measure again: dptrace links -o {path}")
    return content


def links_summary(content: dict[str, Any]) -> dict[str, Any]:
    """Return the part that run.json keeps as ``links``: all but the single measurements."""
    kept = ("created", "backend", "ranks", "nodes", "busbw_gbps", "busbw_gbps_by_kind", "nearest")
    fits = {
        kind: {key: value for key, value in found.items() if key != "measured"}
        for kind, found in content["collectives"].items()
    }
    return {key: content.get(key) for key in kept} | {"collectives": fits}


# The link that a file of ``dptrace links -o`` measured.


Options = TypeVar("Options", bound=Mapping[str, object])


def with_measured_link(options: Options) -> Options:
    """Return options whose ``link`` is the link in the file that it named."""
    link = options.get("link")
    return cast(Options, {**options, "link": measured_link(link)}) if isinstance(link, str) else options


def measured_link(text: str) -> Link | str:
    """Return the link of a file of ``dptrace links -o``, or the text where it is no such file's name.

    Raises:
        DptraceError: the file has no line of all_reduce.
    """
    path = Path(text)
    if path.suffix != ".json":
        return text
    link = (read_links(path)["collectives"].get("all_reduce") or {}).get("link")
    if not link or link["beta_s_per_byte"] <= 0:
        raise DptraceError(f"{path}: has no line of all_reduce; measure one with: dptrace links -o {path}")
    return Link(path.name, link["alpha_s"], 1 / link["beta_s_per_byte"])
