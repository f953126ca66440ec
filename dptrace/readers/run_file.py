"""Read ``run.json``, which people edit and other tools write: what figures read of it has the types they expect."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from dptrace.core.checks import rank_entries
from dptrace.core.units import listed, sanitize
from dptrace.errors import DptraceError
from dptrace.readers.source import Source
from dptrace.readers.storage import ARCHIVE_DAMAGE, open_source

RUN_FILE = "run.json"
_UNREADABLE: tuple[type[Exception], ...] = (*ARCHIVE_DAMAGE, DptraceError, RecursionError)

_NUMBER = (int, float)
_RANK: dict[str, Any] = {
    **dict.fromkeys(("rank", "node", "local_rank", "threads", "recorded_steps"), int),
    **dict.fromkeys(("host", "device", "file"), str),
    **dict.fromkeys(("memory", "coordinates", "pipeline", "experts", "ddp"), dict),
    "flops": {"hardware": _NUMBER, "model": _NUMBER, "dtype": str},
    "unprofiled_ns": [_NUMBER],
    "profiled_ns": [_NUMBER],
    "core_wait_ns": [_NUMBER],
    "overhead_windows": [dict],
}
_RUN: dict[str, Any] = {
    **dict.fromkeys(("status", "created", "mode", "script", "model", "backend"), str),
    **dict.fromkeys(("schema", "nnodes", "world_size", "parameters"), int),
    **dict.fromkeys(("versions", "ddp", "schedule", "failure"), dict),
    "profiler_overhead": _NUMBER,
    "options": {"batch_size": _NUMBER, "tokens_per_sample": _NUMBER},
    "links": {"busbw_gbps": _NUMBER, "busbw_gbps_by_kind": dict},
    "command": [str],
    "losses": [_NUMBER],
    "notes": [str],
    "restarts": [dict],
    "ranks": [_RANK],
}
"""The types of docs/reference/run-folder.md: a list is one of such values, an object may have further keys; each may be
null."""
_MAX_SHOWN = 100
"""Characters of a value that a note shows."""
_NAMES = {int: "a whole number", str: "a text", dict: "an object", list: "a list", _NUMBER: "a number"}


def read_run_file(file: Source) -> tuple[dict[str, Any], list[str]]:
    """Return the contents of a ``run.json``, without values of a wrong type, and a sentence on what is wrong in it."""
    infinite: dict[str, None] = {}

    def number(text: str) -> int | float | None:
        value = float(text)
        if not math.isfinite(value):
            return infinite.setdefault(text)
        return int(text) if text.lstrip("-").isdigit() and abs(value) < 1 << 63 else value

    try:
        with open_source(file) as stream:
            text = stream.read().decode("utf-8-sig")
        content = json.loads(text, parse_constant=infinite.setdefault, parse_float=number, parse_int=number)
    except _UNREADABLE as error:
        reason = str(error).removeprefix(f"{file.address}: can't be read: ").rstrip(".")
        return {}, [f"{RUN_FILE} can't be read ({reason}); the traces are shown without it."]
    if not isinstance(content, dict):
        return {}, [f"{RUN_FILE} holds no object, but {_describe(content)}; the traces are shown without it."]
    notes, wrong = [], list[str]()
    if infinite:
        notes.append(f"{RUN_FILE} holds {listed([*map(_truncate, infinite)])}, which JSON does not have; read as null.")
    _drop_wrong(content, _RUN, "", wrong)
    if wrong:
        notes.append(
            f"{RUN_FILE}: left out, since its type is wrong: {listed([*map(_truncate, wrong)], separator='; ')}."
        )
    return content, notes


def _drop_wrong(values: dict[str, Any], kinds: dict[str, Any], place: str, wrong: list[str]) -> None:
    """Remove the values of a wrong type from an object, and describe each."""
    for key, kind in kinds.items():
        value, name = values.get(key), f"{place}{key}"
        outer = list if isinstance(kind, list) else dict if isinstance(kind, dict) else kind
        if value is None:
            continue
        if not _has_type(value, outer):
            wrong.append(f"{name} is {_describe(value)}, not {_NAMES[outer]}")
            del values[key]
        elif isinstance(kind, dict):
            _drop_wrong(value, kind, f"{name}.", wrong)
        elif isinstance(kind, list):
            inner = dict if isinstance(kind[0], dict) else kind[0]
            for number, element in enumerate(value):
                if element is not None and not _has_type(element, inner):
                    wrong.append(f"{name}[{number}] is {_describe(element)}, not {_NAMES[inner]}")
                elif isinstance(kind[0], dict) and element is not None:
                    _drop_wrong(element, kind[0], f"{name}[{number}].", wrong)
            values[key] = [element for element in value if element is None or _has_type(element, inner)]


def _has_type(value: object, kind: Any) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)


def _describe(value: object) -> str:
    return _NAMES[type(value)] if isinstance(value, (dict, list)) else _truncate(json.dumps(value))


def _truncate(text: str) -> str:
    return sanitize(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…")


def join_run_files(infos: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the first run.json, with the ranks that the job's other machines kept because they share no folder."""
    joined, *others = infos or [{}]
    for other in others:
        known, more = _ranks_of(joined), _ranks_of(other)
        same = all(joined.get(key) == other.get(key) for key in ("world_size", "nnodes", "mode", "model", "schedule"))
        if not same or not more or known.keys() & more.keys():
            continue
        joined = joined | {
            "ranks": [entry for _, entry in sorted((known | more).items())],
            "notes": [
                *dict.fromkeys(
                    note for info in (joined, other) for note in info.get("notes") or () if isinstance(note, str)
                )
            ],
            "losses": [],  # the means over the ranks of one machine
        }
        if other.get("status") == "failed":
            joined |= {"status": "failed", "failure": other.get("failure")}
    return joined


def _ranks_of(info: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {entry["rank"]: entry for entry in rank_entries(info) if type(entry.get("rank")) is int}
