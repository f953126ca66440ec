"""Which lines of a model each kernel of torch.compile computes, from the files that inductor writes beside a trace.

A compiled graph is one call in a trace, ``## Call CompiledFxGraph KEY ##``, and its kernels have names that inductor
makes up. Three kinds of files say what they compute:

- the log of a process with ``TORCH_TRACE=FOLDER``: the code of each graph, whose comments name the FX nodes of each
  kernel; with ``INDUCTOR_PROVENANCE=1`` also the lines; then the graph's key (torch/_inductor/codecache.py, graph.py);
- ``kernel_information.json`` of an ahead-of-time compilation, without a key (torch/_inductor/debug.py);
- a module of generated code, ``output_code.py``, whose comments name FX nodes only.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from dptrace.core.files import unreadable
from dptrace.core.units import plural
from dptrace.errors import TraceError

_MAX_BYTES = 2 << 30
"""A larger file is none that a compiler writes."""
_RECORD = re.compile(r"^[VIWEC]\d{4} [^\]]*\] (\{.*\})$")
_KEY = re.compile(r"fx_graph_cache_(?:hit|miss)$")
_FRAME = re.compile(r'^ *File "(.+)", line (\d+), in (.+)\n +(.*)$', re.MULTILINE)
_COMMENT = re.compile(r"^\s*# Topologically Sorted Source Nodes: \[(.*?)\]")
_HANDLE = re.compile(r"^\s*# \[Provenance debug handles\] (\S+?):(\d+)\s*$")
_CALLED = re.compile(r"^\s*(?:\w+ = )?([\w.]+?)(?:\.run)?\(")
_NODE_LINE = re.compile(r"^\s*# File: (.+):(\d+) in (.+?), code: (.*)$")
_NODE = re.compile(r"^\s*(\w+)(?:: \"[^\"]*\")? = (.*)$")
_PARAMETER = re.compile(r"\bl_\w+?_((?:modules_\w+?_)+)(?:parameters|buffers)_")
_OF_TORCH = re.compile(r"[/\\](?:site|dist)-packages[/\\]torch[/\\]")


class KernelSource(msgspec.Struct, frozen=True):
    """What one call of a kernel computes."""

    lines: tuple[str, ...] = ()
    """``model.py:12``, the whole path, in the order of the file."""
    code: str = ""
    """The text of the first line."""
    nodes: tuple[str, ...] = ()
    """FX nodes of the model's graph, before autograd."""
    modules: tuple[str, ...] = ()
    """Paths of the modules whose parameters the nodes take: ``layers.3.mlp``."""

    def merged(self, other: KernelSource) -> KernelSource:
        """Return what both compute."""
        return KernelSource(
            _sorted((*self.lines, *other.lines)),
            self.code or other.code,
            _distinct((*self.nodes, *other.nodes)),
            _distinct((*self.modules, *other.modules)),
        )


Kernels = dict[str, list[KernelSource]]
"""The calls of each kernel in the order of the graph, by :func:`plain_name`."""


class Provenance:
    """The kernels of compiled graphs, by the key of the graph; those of a file without a key have the key ""."""

    def __init__(self, graphs: dict[str, Kernels]) -> None:
        self.graphs = graphs

    def source(self, key: str, kernel: str, place: int, count: int) -> KernelSource | None:
        """Return what a kernel's call computes.

        Args:
            key: the graph's, as in the trace.
            kernel: its name, as :func:`plain_name` gives it.
            place: which of the graph's calls of this kernel it is, from 0.
            count: how many there are. If the graph's code has another number, all of its calls are meant.
        """
        calls = self.graphs.get(key, {}).get(kernel)
        if calls is None:  # a graph of another process may have another key; a name that only one graph has is enough
            found = [graph[kernel] for graph in self.graphs.values() if kernel in graph]
            if not found or any(other != found[0] for other in found):
                return None
            calls = found[0]
        if len(calls) == count:
            return calls[place]
        merged = calls[0]
        for other in calls[1:]:
            merged = merged.merged(other)
        return merged


def plain_name(name: str) -> str:
    """Return the name that a kernel has in a trace and in inductor's files alike.

    >>> [plain_name(name) for name in ("graph_0_cpp_fused_add_1", "triton_poi_fused_mul_0", "extern_kernels.mm")]
    ['cpp_fused_add_1', 'triton_poi_fused_mul_0', 'mm']
    >>> [plain_name(name) for name in ("aten::mm", "torch.ops.aten.mul.Tensor")]
    ['mm', 'mul']
    """
    name = re.sub(r"^graph_\d+_", "", name)
    if match := re.match(r"(?:torch\.ops\.)?aten\.(\w+)", name):
        return match[1]
    return name.rpartition("::")[2].rpartition("extern_kernels.")[2]


def read_provenance(path: str | Path) -> Provenance:
    """Read a file of inductor's, or all of a folder.

    Raises:
        TraceError: there is none, or none that names a kernel.
    """
    root = Path(path)
    if root.is_dir() and not os.access(root, os.R_OK | os.X_OK):
        raise TraceError(unreadable(root, PermissionError()))
    files = sorted(file for file in root.rglob("*") if _is_ours(file)) if root.is_dir() else [root]
    graphs: dict[str, Kernels] = {}
    for file in files:
        for key, kernels in _graphs_of(file):
            graphs.setdefault(key, {}).update(kernels)
    if not any(graphs.values()):
        read = plural(len(files), "file")
        raise TraceError(
            f"{root}: names no kernel of a compiled graph ({read} read). Record with INDUCTOR_PROVENANCE=1 and "
            "TORCH_TRACE=FOLDER in the environment, and name that folder."
        )
    return Provenance(graphs)


def _is_ours(file: Path) -> bool:
    name = file.name
    log = name.startswith("dedicated_log_torch_trace") and name.endswith((".log", ".log.gz"))
    return file.is_file() and (log or name in ("kernel_information.json", "output_code.py"))


def _graphs_of(file: Path) -> Iterator[tuple[str, Kernels]]:
    try:
        if file.stat().st_size > _MAX_BYTES:
            raise TraceError(f"{file}: is larger than {_MAX_BYTES >> 30} GiB, which no such file is.")
        opened = gzip.open if file.suffix == ".gz" else open
        with opened(file, "rt", encoding="utf-8", errors="replace") as lines:
            if file.suffix == ".json":
                yield "", _stated(json.load(lines), {}, _Nodes())
            elif file.suffix == ".py":
                yield "", _commented(lines, _Nodes())
            else:
                yield from _logged(lines)
    except FileNotFoundError:
        raise TraceError(f"{file}: no such file or folder.") from None
    except OSError as error:
        raise TraceError(unreadable(file, error)) from None
    except (ValueError, RecursionError, EOFError, zlib.error) as error:
        raise TraceError(f"{file}: can't be read as a file of inductor's: {error}") from None


class _Nodes:
    """The line and the modules of each FX node, from the comments of the graph that dynamo writes."""

    def __init__(self) -> None:
        self.lines: dict[str, tuple[str, str]] = {}
        self.modules: dict[str, tuple[str, ...]] = {}
        self.of_line: dict[str, set[tuple[str, ...]]] = {}
        """The modules of each line; several where a line runs for several layers."""

    def add(self, text: Iterable[str]) -> None:
        """Read a graph's text; a later graph's nodes take the place of those with the same name."""
        at: tuple[str, str] | None = None
        for line in text:
            if match := _NODE_LINE.match(line):
                at = f"{match[1]}:{match[2]}", match[4]
            elif at is not None and (match := _NODE.match(line)):
                self.lines[match[1]] = at
                paths = _distinct(map(_path, _PARAMETER.findall(match[2])))
                self.modules[match[1]] = paths
                if paths:
                    self.of_line.setdefault(at[0], set()).add(paths)

    def source(self, nodes: Iterable[str], stated: Iterable[tuple[str, str]] = ()) -> KernelSource:
        """Return what nodes compute, with the lines that are *stated*, else those of the nodes.

        Kernels of backward have lines only; such a line names a module where it runs for that one alone.
        """
        known = _distinct(nodes)
        lines = [line for line in stated if line[0]] or [self.lines[node] for node in known if node in self.lines]
        modules = [path for node in known for path in self.modules.get(node, ())]
        if not known:
            only = [self.of_line[line] for line, _ in lines if len(self.of_line.get(line, ())) == 1]
            modules = [path for paths in only for (*own,) in paths for path in own]
        first = min(lines, key=lambda line: _place(line[0]), default=("", ""))
        return KernelSource(_sorted(line for line, _ in lines), first[1], known, _distinct(modules))


def _logged(lines: Iterable[str]) -> Iterator[tuple[str, Kernels]]:
    """Read a log of TORCH_TRACE: a graph's code and provenance come before its key."""
    nodes, code = _Nodes(), Kernels()
    stacks: dict[str, Any] = {}
    mapping: dict[str, Any] = {}
    for head, payload in _records(lines):
        name = str((head.get("artifact") or {}).get("name", ""))
        if "dynamo_output_graph" in head:
            nodes.add(payload)
        elif "inductor_output_code" in head:
            code, stacks, mapping = _commented(payload, nodes), {}, {}
        elif name == "inductor_provenance_tracking_kernel_stack_traces":
            stacks = _decoded(payload)
        elif name == "inductor_provenance_tracking_node_mappings":
            mapping = _decoded(payload)
        elif _KEY.match(name) and isinstance(key := _decoded(payload).get("key"), str):
            yield key, {**code, **_stated(stacks, mapping, nodes)}
            code, stacks, mapping = Kernels(), {}, {}


def _records(lines: Iterable[str]) -> Iterator[tuple[dict[str, Any], list[str]]]:
    """Yield the head of each record of a log, and the lines of its payload, which a tab begins."""
    head: dict[str, Any] | None = None
    payload: list[str] = []
    for line in lines:
        if line.startswith("\t"):
            payload.append(line[1:])
        elif match := _RECORD.match(line):
            if head is not None:
                yield head, payload
            head, payload = _decoded([match[1]]), []
    if head is not None:
        yield head, payload


def _decoded(payload: list[str]) -> dict[str, Any]:
    try:
        value = json.loads("".join(payload))
    except (ValueError, RecursionError):  # a process was ended while it wrote
        return {}
    return value if isinstance(value, dict) else {}


def _stated(kernels: dict[str, Any], mapping: dict[str, Any], nodes: _Nodes) -> Kernels:
    """Read what provenance tracking states of each kernel: stacks alone, or with nodes as kernel_information.json."""
    by_handle: dict[str, dict[int, KernelSource]] = {}
    before, after = mapping.get("postToPre") or {}, mapping.get("cppCodeToPost") or {}
    for handle, value in kernels.items():
        entry = value if isinstance(value, dict) else {"stack_traces": value}
        own = entry.get("pre_grad_nodes") or [pre for post in after.get(handle, ()) for pre in before.get(post, ())]
        name, _, number = handle.partition(":")
        source = nodes.source(map(str, own), map(_users_frame, entry.get("stack_traces") or ()))
        by_handle.setdefault(plain_name(name), {})[int(number) if number.isdigit() else 0] = source
    return {name: [calls[number] for number in sorted(calls)] for name, calls in by_handle.items()}


def _commented(lines: Iterable[str], nodes: _Nodes) -> Kernels:
    """Read the comments above each kernel's call in generated code; those above its definition repeat them."""
    found: Kernels = {}
    own: tuple[str, ...] | None = None
    for line in lines:
        if match := _COMMENT.match(line):
            own = tuple(filter(None, match[1].split(", ")))
        elif own is not None and (match := _CALLED.match(line)) and not match[1].startswith("async_compile."):
            if match[1] not in ("get_raw_stream", "empty_strided_cuda", "empty_strided_cpu"):
                found.setdefault(plain_name(match[1]), []).append(nodes.source(own))
                own = None
        elif "async_compile." in line:
            own = None
    return found


def _users_frame(stack: Any) -> tuple[str, str]:
    """Return line and text of the innermost frame outside torch."""
    frames = [(f"{file}:{line}", code.strip()) for file, line, _, code in _FRAME.findall(str(stack))]
    own = [frame for frame in frames if not _OF_TORCH.search(frame[0])] or frames
    return own[-1] if own else ("", "")


def _path(parameter: str) -> str:
    """Return a module's path from dynamo's name of it, without the parameter: ``modules_layers_modules_3_``."""
    return ".".join(part.strip("_") for part in parameter.split("modules_") if part)


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))


def _place(line: str) -> tuple[str, int]:
    file, _, number = line.rpartition(":")
    return file, int(number) if number.isdigit() else 0


def _sorted(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({line for line in lines if line}, key=_place))
