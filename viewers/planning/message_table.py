"""The cost of one message by every collective, and by every all-reduce algorithm, as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dptrace.core.units import byte_size, duration
from dptrace.simulate.explanation import megabytes
from dptrace.viewers.base.table import TextTable

__all__ = ["message_facts", "message_tables"]


def message_facts(content: Mapping[str, Any]) -> list[str]:
    """Return the message, each link with its n*, and where the ring becomes the faster all-reduce."""
    links = [
        f"{one['name']}: alpha {_time(one['alpha_s'])}, {one['bytes_per_s'] / 1e9:,.4g} GB/s, n* = alpha·bandwidth = "
        f"{byte_size(one['crossover_bytes'])}: one such message is {one['regime']}."
        for one in content["links"]
    ]
    gamma = content["gamma_s_per_byte"]
    added = f", gamma {1e12 * gamma:,.3g} ps/byte" if gamma else ""
    return [f"{byte_size(content['size_bytes'])} among {content['ranks']:,} ranks{added}.", *links]


def message_tables(content: Mapping[str, Any]) -> Iterator[tuple[str, TextTable]]:
    """Yield the tables with their titles."""
    yield f"Collectives over {content['slowest_link']}", _collectives(content)
    yield "All-reduce by algorithm", _all_reduces(content)


def _collectives(content: Mapping[str, Any]) -> TextTable:
    rows = [
        (one["kind"].replace("_", "-"), one["algorithm"], f"{one['hops']:,.0f}", *_terms(one),
         byte_size(one["crossover_bytes"]))
        for one in content["collectives"]
    ]  # fmt: skip
    columns = ("collective", "algorithm", "messages", "alpha", "beta", "gamma", "time", "regime", "n*")
    note = "n*: from which size on the bytes of the collective take longer than its messages."
    return TextTable(columns, tuple(rows), 2, note)


def _all_reduces(content: Mapping[str, Any]) -> TextTable:
    rows = [
        (one["algorithm"], f"{one['steps']:,.0f}", *(megabytes(one[f"{name}_bytes"]) for name in _VOLUMES),
         *_terms(one))
        for one in content["all_reduce"]
    ]  # fmt: skip
    columns = ("algorithm", "messages", "busiest sends", "sends + receives", "all send")
    crossing = [f"The ring overtakes {one['below']} at {byte_size(one['bytes'])}." for one in content["crossovers"]]
    return TextTable((*columns, "alpha", "beta", "gamma", "time", "regime"), tuple(rows), 1, " ".join(crossing))


_VOLUMES = ("sent", "busiest", "total")


def _terms(one: Mapping[str, Any]) -> tuple[str, ...]:
    return (*(_time(one[name]) for name in ("latency_s", "transfer_s", "adding_s", "seconds")), one["regime"])


def _time(seconds: float) -> str:
    return duration(1e9 * seconds) if seconds else "–"
