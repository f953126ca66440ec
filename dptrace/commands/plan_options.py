"""Options that describe a training: model, number types, GPUs, links, and how it is spread."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dptrace.commands.shared.numbers import Amount, NumberType, Whole
from dptrace.commands.shared.options import Toggle, given_options, group
from dptrace.errors import DptraceError, UsageError

if TYPE_CHECKING:
    from dptrace.model.planning.describe import Description
    from dptrace.viewers.base.marks import Drawing

__all__ = ["chart_of", "description_of", "memory_options", "page_of", "plan_of", "plan_options", "predict_message"]


_COUNT = Whole()  # dptrace.model.planning.describe knows the limits
_GPU = "v100, a100-40, a100, h100, h200, b200, l40s, mi300x … [h100]"
_LINK = "Links within and between nodes: names, or 5us:12.5GB/s. [nvlink4,ib-ndr]"
_SHARDS = "GPUs that share a copy of the parameters."
_STRATEGY = "ddp, zero1, zero2, zero3, fsdp, hsdp, tp, pp, ep or 3d."

model_options = group(
    click.option("--params", type=Amount(), metavar="N", help="Parameters of the model: 7e9 or 7B."),
    click.option("--layers", type=_COUNT, metavar="N", help="Layers of the decoder. [by --params]"),
    click.option("--hidden", type=_COUNT, metavar="N", help="Width of the model. [by --params]"),
    click.option("--heads", type=_COUNT, metavar="N", help="Heads of the attention. [128 wide each]"),
    click.option("--kv-heads", type=_COUNT, metavar="N", help="Heads of keys and values. [--heads]"),
    click.option("--mlp", type=_COUNT, metavar="N", help="Width inside the MLP. [4 × hidden; llama: 8/3]"),
    click.option("--vocab", type=_COUNT, metavar="N", help="Size of the vocabulary. [51200; llama: 32000]"),
    click.option("--seq", type=_COUNT, default=2048, show_default=True, metavar="N", help="Tokens in a sample."),
    click.option(
        "--family",
        default="gpt",
        show_default=True,
        type=click.Choice(["gpt", "llama"]),
        help="llama: gated MLP, no biases, no dropout.",
    ),
    click.option("--experts", type=_COUNT, default=1, metavar="N", help="MLPs in each layer, for --strategy ep. [1]"),
    click.option("--top-k", type=_COUNT, default=2, metavar="N", help="Experts of a token. [2]"),
)
"""The model."""

training_options = group(
    click.option(
        "--precision",
        default="bf16",
        type=click.Choice(["bf16", "fp16", "fp8", "amp", "bf16-pure", "fp32", "tf32"]),
        metavar="NAME",
        help="Number types: bf16, fp16, fp8, amp, bf16-pure, fp32 or tf32. [bf16]",
    ),
    click.option(
        "--optimizer",
        default="adam",
        type=click.Choice(["adam", "adamw", "adam-8bit", "lion", "momentum", "sgd"]),
        metavar="NAME",
        help="adam, adamw, adam-8bit, lion, momentum or sgd. [adam]",
    ),
    click.option(
        "--master-weights/--no-master-weights", cls=Toggle, default=None, help="A float32 copy. [by --precision]"
    ),
    click.option("--gradient-bytes", type=_COUNT, metavar="N", help="Bytes of a gradient. [by --precision]"),
    click.option("--batch", type=_COUNT, metavar="N", help="Samples in a step, over all GPUs. [8 for each GPU]"),
    click.option("--micro-batch", type=_COUNT, metavar="N", help="Samples that a GPU computes at once."),
    click.option(
        "--recompute",
        type=click.Choice(["none", "selective", "full"]),
        metavar="NAME",
        help="Activations that backward computes again: none, selective or full.",
    ),
    click.option(
        "--recompute-every", type=_COUNT, default=1, metavar="N", help="Recompute those of every N-th layer only. [1]"
    ),
    click.option(
        "--attention",
        default="standard",
        show_default=True,
        type=click.Choice(["standard", "flash"]),
        help="flash keeps no table of scores.",
    ),
    click.option("--dropout/--no-dropout", cls=Toggle, default=None, help="Keep dropout's masks. [with --family gpt]"),
)
"""The training."""

_cluster_options = group(
    click.option("--gpus", type=_COUNT, default=8, show_default=True, metavar="N", help="GPUs."),
    click.option("--gpu", default="h100", metavar="NAME", help=_GPU),
    click.option("--gpu-memory", type=Amount(), metavar="BYTES", help="Memory of a GPU: 80GB. [by --gpu]"),
    click.option("--gpus-per-node", type=_COUNT, default=8, show_default=True, metavar="N", help="GPUs of a node."),
    click.option("--strategy", metavar="NAME", help=_STRATEGY),
    click.option("--tp", type=_COUNT, metavar="N", help="GPUs that split each layer."),
    click.option("--pp", type=_COUNT, metavar="N", help="Stages of the pipeline."),
    click.option("--ep", type=_COUNT, metavar="N", help="GPUs that the experts are spread over."),
    click.option("--zero", type=_COUNT, metavar="N", help="ZeRO stage. [by --strategy]"),
    click.option("--shards", type=_COUNT, metavar="N", help=_SHARDS),
    click.option(
        "--schedule",
        default="1f1b",
        type=click.Choice(["gpipe", "1f1b", "interleaved", "zero-bubble"]),
        metavar="NAME",
        help="Pipeline: gpipe, 1f1b, interleaved or zero-bubble. [1f1b]",
    ),
    click.option("--virtual-stages", type=_COUNT, default=2, metavar="N", help="Of each GPU, interleaved. [2]"),
)
"""GPUs, and how the training is spread over them."""

memory_options = group(model_options, training_options, _cluster_options)
"""What the memory of a training depends on."""
_SHARE = "Share of the GPU's peak that computation reaches. [by its matrices]"
_LINKS = "Measured links (dptrace links -o FILE) instead of nominal ones."
plan_options = group(
    memory_options,
    click.option("--link", default="nvlink4,ib-ndr", metavar="A,B", help=_LINK),
    click.option("--mfu", type=NumberType(), metavar="SHARE", help=_SHARE),
    click.option("--links", type=click.Path(path_type=Path), metavar="FILE", help=_LINKS),
)
"""The same, and what its time depends on."""


def description_of(options: dict[str, Any]) -> Description:
    """Take the options of a description out of a verb's options.

    Raises:
        UsageError: an option has no meaning for what the others describe.
    """
    from dptrace.model.planning.describe import Description

    _refuse_unused(options, given_options())
    return Description(**{name: options.pop(name) for name in Description.__struct_fields__ if name in options})


def plan_of(options: dict[str, Any], links: Path | None) -> Description:
    """Take the described training out of a verb's options, with the measured links of a file where there is one.

    Raises:
        UsageError: an option has no meaning for what the others describe, or is about a recording.
        DptraceError: the file holds no fitted line.
    """
    _refuse_reading_options()
    description = description_of(options)
    if links is None:
        return description

    return with_measured_links(description, links)


def _refuse_reading_options() -> None:
    options = {"comm_patterns": "comm-pattern", "cache": "no-cache"}
    if extra := sorted(given_options() & {"comm_patterns", "strict", "cache", "jobs", "ranks", "steps"}):
        raise UsageError(f"--{options.get(extra[0], extra[0])} is about a recording; name its folder, too.")


def _refuse_unused(options: dict[str, Any], given: set[str]) -> None:
    strategy, schedule, stages = options["strategy"], options["schedule"], options["virtual_stages"]
    staged = options["pp"] > 1 if options["pp"] else strategy in (None, "pp", "3d")
    for name, value in (("schedule", schedule), ("virtual_stages", stages)):
        if name in given and not staged:
            which = "--pp 1" if options["pp"] else f"--strategy {strategy}"
            option = f"--{name.replace('_', '-')} {value}"
            raise UsageError(f"{option}: {which} has no pipeline. Leave it out, or choose --strategy pp or 3d.")
    if "virtual_stages" in given and schedule != "interleaved":
        raise UsageError(f"--virtual-stages {stages}: is for --schedule interleaved; add it, or leave this out.")
    if "top_k" in given and options["experts"] == 1:
        raise UsageError(f"--top-k {options['top_k']}: chooses among experts; add --experts, or leave this out.")


# Links of a plan from a file of ``dptrace links``.


def measured_gamma(path: Path) -> float | None:
    """Return the measured time to add a byte, in seconds; None where ``--algorithms`` was not measured."""
    from dptrace.bench.links import read_links

    found = read_links(path).get("algorithms")
    gamma: float | None = found["gamma_s_per_byte"] if found else None
    return gamma


def with_measured_links(description: Description, path: Path, preferred: str = "all_reduce") -> Description:
    """Replace the link that a measurement is of: between nodes if it was on several, else within a node.

    Args:
        preferred: the collective whose line counts, if it was measured. That of all-reduce includes the additions.

    Raises:
        DptraceError: the file holds no fitted line.
    """
    from msgspec.structs import replace

    from dptrace.bench.links import read_links
    from dptrace.model.training.communication import Link

    content = read_links(path)
    lines = {
        kind: found["link"]
        for kind, found in content["collectives"].items()
        if found["link"] and found["link"]["beta_s_per_byte"] > 0
    }
    if not lines:
        raise DptraceError(f"{path}: no line was fitted to its times. Measure again: dptrace links -o {path}")
    kind = preferred if preferred in lines else next(iter(lines))
    line = lines[kind]
    link = Link(f"{path.name} ({kind.replace('_', '-')})", line["alpha_s"], 1 / line["beta_s_per_byte"])
    several = content["nodes"] > 1
    return replace(description, **{"measured_between" if several else "measured_within": link})


# ``dptrace predict --bytes``: what one message takes, by every collective and by every algorithm of an all-reduce.


_USED = {"message_bytes", "gamma", "gpus", "gpus_per_node", "link", "links"}
_OUTPUT = {"run", "as_json", "output", "force", "verbosity"}


def predict_message(options: dict[str, Any], links: Path | None, size: float, gamma_ps: float | None) -> dict[str, Any]:
    """Return what the message takes over links at their nominal rates, or over measured ones.

    Raises:
        UsageError: an option describes a training, or there are fewer than two GPUs.
        DptraceError: the file of links has no fitted line.
    """
    from dptrace.model.planning.describe import Description
    from dptrace.model.training.communication import Network, message_costs, nominal_network

    for name in sorted(given_options() - _USED - _OUTPUT):
        raise UsageError(f"--{name.replace('_', '-')} describes a training; --bytes is one message.")
    found = Description(gpus=options["gpus"], gpus_per_node=options["gpus_per_node"], link=options["link"])
    gamma = gamma_ps * 1e-12 if gamma_ps is not None else None
    if links is not None:
        found = with_measured_links(found, links, "send_recv")
        gamma = measured_gamma(links) if gamma is None else gamma
    nominal = nominal_network(found.link, found.gpus_per_node)
    near, far = found.measured_within or nominal.within, found.measured_between or nominal.between
    return message_costs(Network(near, far, found.gpus_per_node), size, found.gpus, gamma or 0.0)


# The page and the chart of advice, or of a prediction: of a plan, a recording, or a message.


def page_of(content: Mapping[str, Any]) -> str:
    """Return the page of advice, of a plan, of a recording's prediction, or of a message."""
    if content["kind"] == "advise":
        from dptrace.viewers.planning.pages import advise_document as document
    elif content["kind"] == "message_costs":
        from dptrace.viewers.planning.pages import message_document as document
    elif "recorded" in content:
        from dptrace.viewers.planning.pages import recorded_document as document
    else:
        from dptrace.viewers.planning.pages import predict_document as document
    return document(content)


def chart_of(content: Mapping[str, Any]) -> Drawing:
    """Draw the step by strategy; of one strategy, its efficiency by number of GPUs; of a recording, its roofline; of a
    message, its all-reduces by size; of advice, the steps of its plans."""
    from dptrace.viewers.planning.charts import (
        message_chart,
        recorded_roofline_chart,
        scaling_chart,
        steps_chart,
        strategies_chart,
    )

    if content["kind"] == "advise":
        return steps_chart(content)
    if content["kind"] == "message_costs":
        return message_chart(content)
    if "recorded" in content:
        return recorded_roofline_chart(content)
    return strategies_chart(content) if len(content["candidates"]) > 1 else scaling_chart(content)
