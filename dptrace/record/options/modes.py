"""The ways to train that dptrace brings: their names, the idea of each, and the file to read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dptrace.errors import UsageError
from dptrace.record.options.models import MLPS, MODELS

__all__ = ["FAMILIES", "MODES", "Mode", "complete_mode", "trainer"]

FAMILIES = {
    "first": "Modes to begin with",
    "data": "More data parallelism",
    "sharded": "Sharded",
    "tensor": "Tensor parallelism",
    "pipeline": "Pipelines",
    "experts": "Experts",
    "combined": "Several at once",
}
"""What kinds of modes there are, in the order and with the headings of --help."""


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to train in parallel."""

    description: str
    family: str = "first"
    """A key of FAMILIES."""
    models: tuple[str, ...] = tuple(MODELS)
    """The models that it can train; the first is its default, unless --model's own default is among them."""
    file: str = ""
    """Name of the trainer's file, where it is not the mode's with underscores."""
    single_gpu: bool = False
    """Whether it runs on one rank only."""
    whole_batch: bool = False
    """Whether every rank sees the whole batch, so that it need not divide over them."""


_DECODERS = ("gpt-tiny", "gpt-small")
_IN_PAIRS = (*MLPS, "balanced", *_DECODERS)
"""Models of pairs of linear layers, which tensor parallelism can cut."""

MODES = {
    "single": Mode("one GPU, no communication: the baseline", single_gpu=True),
    "naive": Mode("the whole backward pass, then one blocking all-reduce for each parameter"),
    "interleaved": Mode("an all-reduce starts as soon as a gradient is there, while backward goes on"),
    "ddp": Mode("PyTorch's DistributedDataParallel: gradients in buckets, an all-reduce for each bucket"),
    "async-after": Mode("the whole backward pass, then all its all-reduces at once, waited for at the end", "data"),
    "accumulate": Mode("DDP that goes through several micro-batches before each all-reduce", "data"),
    "ring": Mode("the all-reduce itself, written with send and receive: each rank speaks to its neighbours", "data"),
    "hierarchical": Mode("gradients are added up inside each node, then across nodes, then shared out again", "data"),
    "zero1": Mode("DDP whose optimizer state is shared out: each rank updates some of the parameters", "sharded"),
    "zero2": Mode("gradients are reduce-scattered to who updates them, then the parameters gathered", "sharded"),
    "fsdp": Mode("parameters are sharded too, and gathered block by block when they are needed", "sharded"),
    "hsdp": Mode("sharded inside each node, replicated across nodes", "sharded"),
    "tp": Mode(
        "every layer is cut: each rank computes its part, and the activations are all-reduced",
        "tensor",
        models=_IN_PAIRS,
        whole_batch=True,
    ),
    "tp-sp": Mode(
        "the same, and where layers are not cut, each rank has some of the tokens (sequence parallel)",
        "tensor",
        models=_DECODERS,
        whole_batch=True,
    ),
    "pp": Mode("each rank holds some of the layers, and micro-batches pass through them", "pipeline", whole_batch=True),
    "moe": Mode("each rank holds some of the experts; tokens travel to them and back", "experts", models=_DECODERS),
    "dp-tp": Mode(
        "a mesh: rows share out the model as tp does, columns the batch as ddp does",
        "combined",
        models=_IN_PAIRS,
        whole_batch=True,
    ),
    "3d": Mode(
        "a mesh of three: data, pipeline and tensor parallel", "combined", _IN_PAIRS, file="mesh_3d", whole_batch=True
    ),
}
"""One entry for each trainer in trainers/, in the order in which to read them."""


def complete_mode(context: object, parameter: object, begun: str) -> list[str]:
    """Give a shell the modes that begin so."""
    return [mode for mode in MODES if mode.startswith(begun)]


def trainer(mode: str) -> Path:
    """Give the file of a mode's trainer.

    Raises:
        UsageError: there is no such mode; the message lists those there are.
    """
    if mode not in MODES:
        width = max(map(len, MODES))
        lines = "".join(f"\n  {name:{width}}  {known.description}" for name, known in MODES.items())
        raise UsageError(f"There is no mode {mode!r}. The modes are:{lines}")
    name = MODES[mode].file or mode.replace("-", "_")
    return Path(__file__).parents[2] / "trainers" / f"{name}.py"
