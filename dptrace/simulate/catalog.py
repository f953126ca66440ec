"""All explanations by name; what a name needs is imported when it is explained."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from dptrace.core.numbers import COUNT, Number
from dptrace.core.units import nearest
from dptrace.errors import UsageError
from dptrace.simulate.explanation import BYTES, MAX_RANKS, Explanation, Outcome, Settings, links_of


class Entry(msgspec.Struct, frozen=True):
    """One name that can be explained."""

    name: str
    title: str
    about: str
    module: str
    """Below ``dptrace.simulate``; its function ``simulate`` takes the name."""
    options: Mapping[str, Number] = {}
    """The fields of :class:`Settings` that it uses, in addition to ranks, bytes and links, and which numbers each takes
    if it is given."""


_NODES = {"node_size": COUNT}
_PIPELINE = {"micro_batches": Number(1, 64, whole=True)}

ENTRIES = {
    entry.name: entry
    for entry in (
        Entry(
            "ring",
            "Ring all-reduce",
            "Every rank sends one chunk at a time to its right neighbor: a reduce-scatter, then an all-gather. All "
            "links are busy all the time, and no rank sends more than twice its tensor, however many ranks there are.",
            "collectives",
            _NODES,
        ),
        Entry(
            "tree",
            "Tree all-reduce",
            "Whole tensors move up a binomial tree and are added there; the sum moves down again. Few messages one "
            "after the other, but each is a whole tensor: for small tensors.",
            "collectives",
            _NODES,
        ),
        Entry(
            "halving-doubling",
            "Halving-doubling all-reduce",
            "Partners at halving distances exchange halves of what they still reduce, then partners at doubling "
            "distances exchange what is finished: the volume of a ring with the few messages of a tree.",
            "collectives",
            _NODES,
        ),
        Entry(
            "hierarchical",
            "Hierarchical all-reduce",
            "Each node sums its tensors on its first rank, these leaders all-reduce around a ring, and broadcast the "
            "result in their nodes: the slow links between nodes carry one tensor for each node.",
            "collectives",
            _NODES,
        ),
        Entry(
            "naive",
            "Naive all-reduce",
            "All ranks send their whole tensor to rank 0, which adds them and sends the sum back to all. The link of "
            "rank 0 carries everything, and the more ranks there are the longer it takes.",
            "collectives",
            _NODES,
        ),
        Entry("broadcast", "Broadcast", "Rank 0 gives all ranks its tensor.", "collectives"),
        Entry("reduce", "Reduce", "The tensors of all ranks are summed on rank 0.", "collectives"),
        Entry("scatter", "Scatter", "Rank 0 gives each rank one chunk of its tensor.", "collectives"),
        Entry("gather", "Gather", "Rank 0 collects a chunk of each rank.", "collectives"),
        Entry("all-gather", "All-gather", "All ranks collect a chunk of each rank.", "collectives"),
        Entry(
            "reduce-scatter",
            "Reduce-scatter",
            "The tensors of all ranks are summed, and each rank keeps one chunk of the sum.",
            "collectives",
        ),
        Entry(
            "all-to-all",
            "All-to-all",
            "Rank i sends its chunk j to rank j: the matrix of chunks is transposed.",
            "collectives",
        ),
        Entry(
            "gpipe",
            "Pipeline schedule GPipe",
            "The ranks hold consecutive layers. All micro-batches go forward through all ranks, then all go backward; "
            "until then every rank keeps the activations of all micro-batches.",
            "pipeline",
            _PIPELINE,
        ),
        Entry(
            "1f1b",
            "Pipeline schedule 1F1B",
            "The ranks hold consecutive layers. After a few forwards each rank runs a forward and a backward in turn: "
            "the bubble of GPipe, but activations of as many micro-batches as ranks at most.",
            "pipeline",
            _PIPELINE,
        ),
        Entry(
            "interleaved",
            "Pipeline schedule interleaved 1F1B",
            "Every rank holds several chunks of layers, a, b, …, so that a micro-batch passes it several times: a "
            "smaller bubble for more messages.",
            "pipeline",
            {**_PIPELINE, "chunks": Number(2, 8, whole=True)},
        ),
        Entry(
            "zero-bubble",
            "Pipeline schedule zero-bubble (ZB-H1)",
            "Backward is split: B computes the gradient of the input, for which the rank before waits, and W that of "
            "the weights, for which nobody waits, so that it fills the bubble.",
            "pipeline",
            _PIPELINE,
        ),
        Entry(
            "zb-v",
            "Pipeline schedule ZB-V",
            "Every rank holds two chunks of layers in a V, a on the way down and b on the way back, so that the last "
            "rank goes on at once. With B and W apart, no rank waits between its first and its last micro-batch.",
            "pipeline",
            _PIPELINE,
        ),
        Entry(
            "dualpipe",
            "Pipeline schedule DualPipe",
            "Two pipelines run in opposite directions, a from the first rank and b from the last, so every rank holds "
            "two chunks of layers, and each chunk is on two ranks, which add up its gradients: half of the bubble for "
            "twice the parameters.",
            "pipeline",
            _PIPELINE,
        ),
        Entry(
            "fsdp",
            "Fully sharded data parallelism",
            "Every rank keeps a shard of each layer. A layer is gathered before its forward and again before its "
            "backward, and freed after; its gradients are summed and scattered, and each rank updates its shard.",
            "data_parallel",
            {"layers": Number(1, 12, whole=True)},
        ),
        Entry(
            "ddp-buckets",
            "Gradient buckets of DistributedDataParallel",
            "Backward computes gradients from the last layer to the first. They fill buckets, and the all-reduce of a "
            "full bucket runs while backward goes on.",
            "data_parallel",
            {"layers": Number(1, 24, whole=True), "bucket_bytes": BYTES},
        ),
        Entry(
            "tp",
            "Tensor parallelism of two layers",
            "Rank r has the columns r of the first weight and the rows r of the second. From its columns of "
            "H = tanh(X·W1) it computes a partial sum of Y = H·W2; one all-reduce adds these. Backward needs another "
            "for dX.",
            "tensor_parallel",
        ),
        Entry(
            "sp",
            "Tensor parallelism with sequence parallelism",
            "As tp, but before and after the two layers each rank keeps its tokens only: an all-gather collects the "
            "tokens, and a reduce-scatter adds the partial sums and divides the tokens again.",
            "tensor_parallel",
        ),
        Entry(
            "moe",
            "Mixture of experts",
            "Each rank has one expert. A router chooses experts for every token; an all-to-all sends the tokens to "
            "their experts, and another brings the results back. What exceeds the capacity is dropped.",
            "tensor_parallel",
            {"tokens": Number(1, 32, whole=True), "top_k": COUNT, "capacity_factor": Number(above=0, most=1e6)},
        ),
        Entry(
            "zero",
            "ZeRO",
            "Every rank updates one shard of the parameters, so that it needs only that shard of the optimizer's state "
            "(stage 1), of the gradients (stage 2) and of the parameters (stage 3).",
            "data_parallel",
            {"stage": Number(1, 3, whole=True)},
        ),
    )
}
"""What ``dptrace explain`` and ``dptrace.explain`` know, in the order of their help."""

OPTIONS = tuple(sorted({option for entry in ENTRIES.values() for option in entry.options}))
"""The fields of :class:`Settings` that only some names use."""


_OPTIONAL = {field.name for field in msgspec.structs.fields(Settings) if field.default is None}
"""Those that follow from others if they are not given."""


_ALL_REDUCE = ("all-reduce", "allreduce")
"""What several algorithms do, of which NCCL and gloo choose the ring for large messages."""


def entry_named(name: str) -> Entry:
    """Return the entry of a name; underscores and capitals do not matter, and an all-reduce is the ring's.

    Raises:
        UsageError: there is none; the message names the nearest.
    """
    plain = str(name).strip().lower().replace("_", "-")
    plain = "ring" if plain in _ALL_REDUCE else plain
    if plain in ENTRIES:
        return ENTRIES[plain]
    raise UsageError(f"{str(name)!r} can't be explained.{nearest(plain, ENTRIES)} The names are {', '.join(ENTRIES)}.")


def explain(name: str, settings: Settings) -> Explanation:
    """Simulate an algorithm on NumPy arrays, and return its steps and its cost.

    Raises:
        UsageError: there is no such name, or a setting is out of range.
        AssertionError: the ranks do not end with NumPy's result. That is an error of dptrace; nothing is drawn.
    """
    entry = entry_named(name)
    settings = _with_defaults(entry, settings)
    Number(2, MAX_RANKS, whole=True).check(settings.ranks, "--ranks")
    BYTES.check(settings.size_bytes, "--bytes")
    for option, number in entry.options.items():
        value = getattr(settings, option)
        if value is not None or option not in _OPTIONAL:
            number.check(value, f"--{option.replace('_', '-')}")
    if settings.node_size is not None and settings.node_size > settings.ranks:
        raise UsageError(f"--node-size {settings.node_size}: must be from 1 to {settings.ranks}, the number of ranks.")
    outcome: Outcome = importlib.import_module(f"dptrace.simulate.{entry.module}").simulate(entry.name, settings)
    return Explanation(
        name=entry.name,
        title=entry.title,
        about=entry.about,
        ranks=settings.ranks,
        options={key: getattr(settings, key) for key in entry.options if getattr(settings, key) is not None},
        rows=tuple(f"rank {rank}" for rank in range(settings.ranks)),
        **msgspec.structs.asdict(outcome),
    )


def settings_of(
    name: str,
    ranks: int,
    size_bytes: float,
    link: str | None,
    alpha_us: float | None,
    bandwidth_gbps: float | None,
    options: Mapping[str, Any],
) -> Settings:
    """Return the settings of a name; *options* are fields of :class:`Settings` that it uses.

    Raises:
        UsageError: the name, an option or a link is unknown.
    """
    entry = entry_named(name)
    for option in options:
        refuse_unused(entry, option)
    within, between = links_of(link, alpha_us, bandwidth_gbps)
    return Settings(ranks=ranks, size_bytes=size_bytes, link=within, between=between, **options)


def refuse_unused(entry: Entry, option: str) -> None:
    """Refuse an option that has no meaning for a name.

    Raises:
        UsageError: the message says what it is for.
    """
    if option in entry.options:
        return
    users = ", ".join(other.name for other in ENTRIES.values() if option in other.options)
    advice = f"it is for {users}" if users else f"the options are {', '.join(OPTIONS)}"
    raise UsageError(f"--{option.replace('_', '-')} has no meaning for {entry.name}; {advice}.")


def _with_defaults(entry: Entry, settings: Settings) -> Settings:
    """Fill in what follows from the number of ranks: two nodes, and twice as many micro-batches as ranks."""
    if entry.name == "hierarchical" and settings.node_size is None:
        settings = replace(settings, node_size=(settings.ranks + 1) // 2)
    if "micro_batches" in entry.options and settings.micro_batches is None:
        settings = replace(settings, micro_batches=2 * settings.ranks)
    return settings
