"""Measured links as text: facts, a table for the terminal, and the most similar known interconnect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dptrace.core.units import MINUS, duration, plural, sanitize
from dptrace.viewers.base.table import TextTable

_LABELS = {
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "send_recv": "point-to-point",
}

_COLUMNS = (
    *("", "α µs\n(95 %)", "β ps/byte\n(95 %)", "n* =\nα/β", "R²\nabove n*", "off the\nline", "up to"),
    *("algbw\nGB/s", "busbw\nGB/s", "at", "per link\nα µs", "per link\nGB/s"),
)


def label(kind: str) -> str:
    """Return the name of a kind of collective."""
    return _LABELS.get(kind, sanitize(kind))


def size(count: float) -> str:
    """Write bytes in powers of 1024, as nccl-tests does.

    >>> size(1024), size(1536 * 1024), size(300)
    ('1 KiB', '1.5 MiB', '300 B')
    """
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.3g} {unit}" if count < 1000 else f"{count:.0f} {unit}"
        count /= 1024
    raise AssertionError


def facts(content: Mapping[str, Any]) -> list[str]:
    """Return who exchanged messages, over what, and how it was timed."""
    ranks, nodes = content["ranks"], content["nodes"]
    where = f"on {nodes} machines" if nodes > 1 else "on one machine"
    versions = content["versions"]
    library = f"NCCL {versions['nccl']}" if versions.get("nccl") else "gloo on the CPU (no GPU was used)"
    return [
        f"{ranks} ranks {where}",
        library,
        f"torch {versions['torch']}",
        f"{content['rounds']} rounds in {content['seconds']:.0f} s",
        str(content["statistic"]),
    ]


def fits_table(content: Mapping[str, Any]) -> TextTable:
    """Return the fit of each collective, its highest bandwidth, and the latency and bandwidth of one link."""
    rows = []
    for kind, found in content["collectives"].items():
        fit, link, largest = found["fit"], found["link"], size(found["measured"][-1]["bytes"])
        rates = f"{found['algbw_gbps']:.3g}", f"{found['busbw_gbps']:.3g}", size(found["busbw_at_bytes"])
        if fit is None:
            rows.append((label(kind), *["–"] * 5, largest, *rates, "–", "–"))
            continue
        line = (
            _between(fit["alpha_s"], fit["alpha_range_s"], 1e6),
            _between(fit["beta_s_per_byte"], fit["beta_range_s_per_byte"], 1e12),
            "–" if fit["crossover_bytes"] is None else size(fit["crossover_bytes"]),
            _r2(fit),
            f"{100 * fit['deviation']:.0f} %",
        )
        link_rate = "–" if link["bandwidth_gbps"] is None else f"{link['bandwidth_gbps']:.3g}"
        rows.append((label(kind), *line, largest, *rates, f"{link['alpha_s'] * 1e6:.3g}", link_rate))
    return TextTable(_COLUMNS, tuple(rows))


def _between(value: float, ends: tuple[float, float], unit: float) -> str:
    return f"{_figures(value * unit)} ({_figures(ends[0] * unit)}–{_figures(ends[1] * unit)})"


def _figures(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _r2(fit: Mapping[str, Any]) -> str:
    if fit["r2_above"] is None:
        return "–"
    one = f"{fit['r2_above']:.3f}"
    return one if fit["r2_pieces"] is None else f"{one}; {fit['r2_pieces']:.3f} by {len(fit['pieces'])} lines"


def nearest_link_sentence(content: Mapping[str, Any]) -> str:
    """Name the most similar known interconnect and the difference; empty without a fit."""
    near = content["nearest"]
    if near is None:
        return ""
    rate = near["bytes_per_s"] * near["bandwidth_ratio"] / 1e9
    text = (
        f"By {label(near['by'])}, one link carries {rate:.3g} GB/s: most like {near['name']} "
        f"({near['bytes_per_s'] / 1e9:g} GB/s), {near['bandwidth_ratio']:.2f} times its bandwidth"
    )
    text += "." if near["latency_ratio"] is None else f" and {near['latency_ratio']:.1f} times its typical latency."
    return f"{text} {near['remark']}".rstrip()


def topology(content: Mapping[str, Any]) -> Iterator[str]:
    """Describe the cores, NUMA nodes, GPUs and links of each machine, and what is unknown."""
    for machine in content["machines"]:
        numa = machine["numa"]
        parts = [f"{plural(machine['cores'], 'core')}"]
        listed = ", ".join(f"{one['node']}: {one['cores']}" for one in numa)
        parts.append(f"NUMA nodes with their cores {listed}" if numa else "NUMA nodes unknown")
        links = machine.get("gpu_links") or {}
        link_list = " ".join(f"{pair} {link}" for pair, link in links.items())
        parts.append(f"GPU links {link_list}" if links else "GPU links unknown (nvidia-smi topo -m shows none)")
        yield sanitize(f"{machine['host']}: {'; '.join(parts)}.")
    gpus = [name for name in content["gpus"] if name]
    if gpus:
        yield sanitize("GPUs by rank: " + ", ".join(gpus) + ".")


# Timed all-reduce algorithms as tables: what each sends, and measured times next to predicted ones.


LIBRARY = "library"
"""Column of the backend's own all-reduce."""
_ROWS = 8
"""Most sizes in the table; the file and the chart have all."""


def algorithm_tables(content: Mapping[str, Any]) -> Iterator[tuple[str, TextTable]]:
    """Yield the tables of ``--algorithms`` with their titles; none without it."""
    found = content.get("algorithms")
    if found and found["all_reduce"]:
        yield "All-reduce by algorithm, written with send and receive", _volumes(found)
        yield "Measured time, and how much longer (+) or shorter it is than predicted", _times(content)


def _volumes(found: Mapping[str, Any]) -> TextTable:
    rows = [
        (
            sanitize(name),
            f"{one['hops']:g}",
            f"{one['sent_share']:.3g} n",
            f"{one['total_share']:.3g} n",
            f"{one['adds']:.3g} n",
            "–" if one["deviation"] is None else f"{100 * one['deviation']:.0f} %",
            sanitize(one["formula"]),
        )
        for name, one in found["all_reduce"].items()
    ]
    # The formula is last, where a narrow terminal wraps it.
    columns = ("algorithm", "messages", "busiest sends", "all send", "adds", "median error", "predicted time")
    return TextTable(columns, tuple(rows), 1, " ".join([_basis(found), *crossover_sentences(found)]))


def _basis(found: Mapping[str, Any]) -> str:
    """Return what the predictions are made of."""
    gamma = found["gamma_s_per_byte"]
    added = "" if gamma is None else f", and gamma = {1e12 * gamma:.3g} ps/byte of an addition"
    if found["alpha_s"] is None or found["beta_s_per_byte"] is None:
        return "Nothing is predicted: no line could be fitted to point-to-point messages."
    return (
        f"Predicted with alpha = {duration(1e9 * found['alpha_s'])} and beta = "
        f"{1e12 * found['beta_s_per_byte']:.3g} ps/byte of one point-to-point message{added}. Hierarchical: "
        f"{plural(found['ranks_per_node'], 'rank')} to a node."
    )


def crossover_sentences(found: Mapping[str, Any]) -> list[str]:
    """Return where one algorithm is predicted to overtake another, if any does."""
    pairs = [f"{one['above']} overtakes {one['below']} at {size(one['bytes'])}" for one in found["crossovers"]]
    return [sanitize(f"By prediction, {'; '.join(pairs)}.")] if pairs else []


def _times(content: Mapping[str, Any]) -> TextTable:
    found = content["algorithms"]["all_reduce"]
    library = {row["bytes"]: row for row in content["collectives"].get("all_reduce", {}).get("measured", ())}
    by_size = {name: {row["bytes"]: row for row in one["measured"]} for name, one in found.items()}
    sizes = sorted({at for rows in by_size.values() for at in rows})
    step = -(-len(sizes) // _ROWS)
    shown = sizes[::-1][::step][::-1]
    rows = []
    for at in shown:
        timed = {name: of[at] for name, of in by_size.items() if at in of}
        best = min(timed, key=lambda name: float(timed[name]["median_s"]))
        own = duration(1e9 * library[at]["median_s"]) if at in library else "–"
        cells = [_cell(timed[name], name == best) if name in timed else "–" for name in found]
        rows.append((size(at), own, *cells))
    note = "* is the fastest of the algorithms; the library is the backend's own all-reduce."
    return TextTable(("size", LIBRARY, *map(sanitize, found)), tuple(rows), 1, note)


def _cell(row: Mapping[str, Any], best: bool) -> str:
    predicted, star = row["predicted_s"], " *" if best else ""
    off = f" {100 * (row['median_s'] / predicted - 1):+.0f} %".replace("-", MINUS) if predicted else ""
    return f"{duration(1e9 * row['median_s'])}{off}{star}"
