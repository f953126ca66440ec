"""The modes of ``dptrace record --mode``: one entry for each, with its idea and all that sets it apart."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dptrace.errors import UsageError

# The models that the trainers train: their names, their sizes, and the default training options of each.


@dataclass(frozen=True, slots=True)
class Model:
    """One model and its default options."""

    description: str
    batch_size: int
    optimizer: str
    lr: float
    weight_decay: float = 0.0
    blocks: int = 0
    """How many equal blocks of several layers it has, whose activations can be recomputed."""
    tp_units: int = 0
    """Heads or neurons; the number of tensor-parallel ranks must divide it. 0 if the model cannot be split."""
    context: int = 0
    """Tokens in a sample, for decoders."""


WIDTHS = {
    "small": [784, 1024, 512, 256, 10],  # 1.5 million parameters
    "medium": [784, 2048, 2048, 1024, 512, 10],  # 8.4 million
    "large": [784, 4096, 4096, 2048, 2048, 1024, 512, 10],  # 35.2 million
    "xlarge": [784, 4096, 4096, 4096, 2048, 2048, 1024, 512, 10],  # 52.0 million
}
"""Neurons in each layer of the MLPs. Deep, so that one layer's gradients can travel while the next one's are
computed."""

DECODERS = {
    "gpt-tiny": {"width": 128, "depth": 4, "heads": 4, "vocabulary": 512, "context": 64},  # 0.9 million parameters
    "gpt-small": {"width": 768, "depth": 12, "heads": 12, "vocabulary": 32_768, "context": 512},  # 135.8 million
}
"""gpt-small has GPT-2 small's width, depth and heads, a vocabulary that is a power of two, and half its context."""

MLPS = tuple(WIDTHS)

MODELS = {
    "small": Model("MLP of 1.5 million parameters", 1024, "sgd", 0.01, tp_units=256),
    "medium": Model("MLP of 8.4 million", 1024, "sgd", 0.01, tp_units=1024),
    "large": Model("MLP of 35.2 million", 1024, "sgd", 0.01, tp_units=1024),
    "xlarge": Model("MLP of 52.0 million", 1024, "sgd", 0.01, tp_units=512),
    "balanced": Model("8 equal blocks, 9.9 million", 1024, "sgd", 0.01, blocks=8, tp_units=784),
    "resnet18": Model("ResNet-18 of 11.2 million on CIFAR-10", 128, "adamw", 5e-4, 1e-4, blocks=8),
    "gpt-tiny": Model("decoder of 0.9 million", 64, "adamw", 1e-3, blocks=4, tp_units=4, context=64),
    "gpt-small": Model("decoder of 135.8 million", 32, "adamw", 3e-4, 0.1, blocks=12, tp_units=12, context=512),
}
"""Models by name, in the order of --help."""


FAMILIES = {
    "first": "Modes to begin with",
    "data": "More data parallelism",
    "sharded": "Sharded",
    "tensor": "Tensor parallelism",
    "pipeline": "Pipelines",
    "experts": "Experts",
    "combined": "Several at once",
}
"""Families of modes, in the order and with the headings of --help."""

Trait = Literal[
    "replicated",  # every rank holds the whole model and optimizer state: a checkpoint of one rank is complete
    "ddp",  # wraps the model in DistributedDataParallel
    "one backward",  # runs backward once a step, so that DDP's graph may be static
    "micro-batches",  # splits the batch of a step
    "nodes",  # treats the links within a node and between nodes differently
    "fully sharded",  # uses fully_shard
    "tensor",  # splits layers over ranks
    "sequence",  # splits the tokens of a sample as well
    "mesh",  # splits layers over some of the ranks, --tp of them; without this trait over all ranks
    "stages",  # has --pp stages
    "schedule",  # chooses the order of the pipeline's forwards and backwards
    "whole batch",  # every rank sees the whole batch, which need not be divisible by the number of ranks
    "experts",  # splits the experts of each block over the ranks
    "expert mesh",  # splits them over some of the ranks, --ep of them
]
"""A property that decides which options a mode takes (``Option.trait``) and which checks it must pass."""


@dataclass(frozen=True, slots=True)
class Mode:
    """One way to train in parallel."""

    description: str
    family: str = "first"
    """A key of FAMILIES."""
    traits: tuple[Trait, ...] = ()
    models: tuple[str, ...] = tuple(MODELS)
    """The models that it can train; ``catalog.default_model`` chooses its default."""
    single_gpu: bool = False
    """Whether it runs on one rank only."""


_DECODERS = ("gpt-tiny", "gpt-small")
_IN_PAIRS = (*MLPS, "balanced", *_DECODERS)
"""Models of pairs of linear layers, which tensor parallelism can split."""

MODES = {
    "single": Mode("one GPU, no communication: the baseline", traits=("replicated",), single_gpu=True),
    "naive": Mode("the whole backward pass, then one blocking all-reduce for each parameter", traits=("replicated",)),
    "interleaved": Mode(
        "each all-reduce starts as soon as its gradient is ready, while backward continues", traits=("replicated",)
    ),
    "ddp": Mode(
        "PyTorch's DistributedDataParallel: gradients in buckets, an all-reduce for each bucket",
        traits=("replicated", "ddp", "one backward"),
    ),
    "async-after": Mode(
        "the whole backward pass, then all all-reduces at once, followed by one wait", "data", ("replicated",)
    ),
    "accumulate": Mode(
        "DDP that accumulates the gradients of several micro-batches before each all-reduce",
        "data",
        ("replicated", "ddp", "micro-batches"),
    ),
    "ring": Mode(
        "the all-reduce itself, written with send and receive: each rank talks to its two neighbors",
        "data",
        ("replicated",),
    ),
    "hierarchical": Mode(
        "gradients are summed within each node, then across nodes, then broadcast within each node",
        "data",
        ("replicated", "nodes"),
    ),
    "zero1": Mode("DDP with a sharded optimizer: each rank updates some of the parameters", "sharded"),
    "zero2": Mode("gradients are reduce-scattered, each rank updates its shard, parameters are gathered", "sharded"),
    "fsdp": Mode(
        "parameters are sharded too, and gathered block by block when they are needed", "sharded", ("fully sharded",)
    ),
    "hsdp": Mode("sharded within each node, replicated across nodes", "sharded", ("fully sharded", "nodes")),
    "tp": Mode(
        "every layer is split: each rank computes its part, and the activations are all-reduced",
        "tensor",
        ("tensor", "whole batch"),
        models=_IN_PAIRS,
    ),
    "tp-sp": Mode(
        "tp, with the tokens split over the ranks wherever layers are not (sequence parallelism)",
        "tensor",
        ("tensor", "sequence", "whole batch"),
        models=_DECODERS,
    ),
    "pp": Mode(
        "each rank holds some of the layers, and micro-batches pass through them",
        "pipeline",
        ("schedule", "micro-batches", "whole batch"),
    ),
    "moe": Mode(
        "each rank holds some of the experts; tokens travel to them and back", "experts", ("experts",), models=_DECODERS
    ),
    "dp-tp": Mode(
        "a mesh: each row splits the model as tp does, each column the batch as ddp does",
        "combined",
        ("tensor", "mesh", "whole batch"),
        models=_IN_PAIRS,
    ),
    "3d": Mode(
        "a mesh with three dimensions: data, pipeline and tensor parallel",
        "combined",
        ("tensor", "mesh", "stages", "micro-batches", "whole batch"),
        models=_IN_PAIRS,
    ),
    "4d": Mode(
        "experts as in moe, on a mesh with four dimensions: data, pipeline, expert and tensor parallel",
        "combined",
        ("tensor", "mesh", "stages", "micro-batches", "whole batch", "experts", "expert mesh"),
        models=_DECODERS,
    ),
}
"""One entry for each trainer in trainers/, in the order in which to read them."""


def modes_with(trait: Trait) -> tuple[str, ...]:
    """Return the modes that have a trait."""
    return tuple(name for name, mode in MODES.items() if trait in mode.traits)


REPLICATED = modes_with("replicated")
"""Modes in which a checkpoint of one rank is complete; in the others each rank writes what it holds."""
DATA_PARALLEL = tuple(
    name for name, mode in MODES.items() if mode.family in ("first", "data", "sharded") and not mode.single_gpu
)
"""Modes whose ranks run the same layers on samples of their own."""


def complete_mode(context: object, parameter: object, incomplete: str) -> list[str]:
    """Return the modes that begin with *incomplete*, for shell completion."""
    return [mode for mode in MODES if mode.startswith(incomplete)]


def trainer(mode: str) -> Path:
    """Return the file of a mode's trainer.

    Raises:
        UsageError: the mode is unknown; the message lists all modes.
    """
    if mode not in MODES:
        width = max(map(len, MODES))
        lines = "".join(f"\n  {name:{width}}  {known.description}" for name, known in MODES.items())
        raise UsageError(f"Unknown mode {mode!r}; choose from:{lines}")
    # A module's name cannot begin with a digit.
    name = f"mesh_{mode}" if mode in ("3d", "4d") else mode.replace("-", "_")
    return Path(__file__).parents[2] / "trainers" / f"{name}.py"
