"""The nodes that the ranks of a run were on."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from dptrace.timeline.model import Timeline

_NODE_IN_NAME = re.compile(r"^(?:(.+?)_\d+\.|.*?((?:node|host)[-_]?\d+))", re.IGNORECASE)
"""The host in a file's name, as torch's ``tensorboard_trace_handler`` writes it (``HOST_PID.…``), or as people do."""


def node_names(timelines: Sequence[Timeline], metadata: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the node of each timeline by ``run.json``, else by its trace's host, else by its file's name; or empty."""
    entries = metadata.get("ranks")
    known = [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []
    nodes = {entry.get("rank"): f"node {entry['node']}" for entry in known if isinstance(entry.get("node"), int)}
    hosts = {entry.get("rank"): str(entry["host"]) for entry in known if entry.get("host")}
    for found in (
        [nodes.get(timeline.rank, "") for timeline in timelines],
        [hosts.get(timeline.rank, "") for timeline in timelines],
        [timeline.host_name for timeline in timelines],
        [_node_in(PurePath(timeline.path).name) for timeline in timelines],
    ):
        if len(set(found)) > 1 and any(found):
            return tuple(found)
    return ("",) * len(timelines)


def _node_in(name: str) -> str:
    match = _NODE_IN_NAME.match(name)
    return (match[1] or match[2]) if match else ""
