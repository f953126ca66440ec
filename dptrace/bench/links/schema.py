"""The schema of links.json, so that a file that was edited or made elsewhere is refused before it is drawn."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

__all__ = ["check_links"]

_Amount = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
_Number = Annotated[float, msgspec.Meta(ge=-1e18, le=1e18)]
_Positive = Annotated[float, msgspec.Meta(gt=0, le=1e18)]
_Bytes = Annotated[int, msgspec.Meta(ge=1, le=1 << 53)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=1 << 31)]
_Text = Annotated[str, msgspec.Meta(max_length=1000)]


class _Row(msgspec.Struct):
    """One size of a collective."""

    bytes: _Bytes
    count: _Count
    median_s: _Positive
    quarter_s: _Positive
    three_quarters_s: _Positive
    busbw_gbps: _Positive
    fitted_s: _Number | msgspec.UnsetType = msgspec.UNSET


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


class _Timed(msgspec.Struct):
    """One size of an algorithm."""

    bytes: _Bytes
    count: _Count
    median_s: _Positive
    quarter_s: _Positive
    three_quarters_s: _Positive
    predicted_s: _Amount | None


class _Algorithm(msgspec.Struct):
    formula: _Text
    hops: _Amount
    share: _Amount
    adds: _Amount
    sent_share: _Amount
    total_share: _Amount
    deviation: _Amount | None
    measured: Annotated[list[_Timed], msgspec.Meta(min_length=1)]


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
