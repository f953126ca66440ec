"""A description of a training, as a person gives it, completed to plans: what is not given is assumed, and said."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Annotated, Any, get_type_hints

import msgspec

from dptrace.core.numbers import COUNT, Number
from dptrace.core.units import nearest, plural
from dptrace.errors import UsageError
from dptrace.model.gpu_peaks import Gpu, gpu_named, table_rows
from dptrace.model.training.communication import BETWEEN, WITHIN, Link, Network, reached_link, within_and_between
from dptrace.model.training.layout import SCHEDULES, STRATEGIES, Layout
from dptrace.model.training.memory import OPTIMIZERS, PRECISIONS, RECOMPUTE
from dptrace.model.training.plan import OVERLAPPED, Plan
from dptrace.model.training.shape import (
    FAMILIES,
    KNOWN,
    LayerStack,
    ModelShape,
    assumed_shape,
    decoder_shape,
    layer_stack,
    perceptron,
)

_SAMPLES_EACH = 8
"""Samples of each GPU in a step, unless the batch is given; 256 of an MLP, as the GPU workshop has them on 4 GPUs."""
_SMALL = 20e6
"""Parameters below which --params alone is taken for an MLP: a decoder's table of tokens has more."""
MODELS = {row["name"]: row for row in table_rows("models.csv")}
"""Models by their names, each with the parts of its description, as text."""
_OF_EXPERTS = ("shared_experts", "dense_layers", "dense_mlp", "expert_nodes")
NOT_SHARDED = "--cpu-offload is for sharded parameters: add --strategy fsdp, hsdp or --zero 3."
"""Why parameters that each GPU holds whole are not offloaded."""
_OF_SHAPE = ("experts", *_OF_EXPERTS[:3], "head_width", "query_rank", "kv_rank", "rope_width")
"""Parts that a shape has by the same names, where what is not given is 0."""
_OF_PLAN = {"master_weights": "master", "mfu": "share"} | {
    name: name
    for name in (
        "precision",
        "optimizer",
        "gradient_bytes",
        "recompute_every",
        "fused_loss",
        "overlapped",
        "expert_nodes",
    )
}
"""Parts that a plan has as they are given, and what they are called there."""
_PARTS_OF = {"experts": ("top_k", *_OF_EXPERTS), "kv_rank": ("query_rank", "rope_width")}
"""What a named model has along with a part: without that part, it has none of these."""
_OF_DECODERS = (
    *("model", "params", "layers", "hidden", "heads", "kv_heads", "mlp", "vocab", "seq", "family", "experts", "cp"),
    *("attention", "dropout", "head_width", "query_rank", "kv_rank", "rope_width", *_OF_EXPERTS),
    *("fused_loss", "overlapped"),
)
"""Parts of a description that a stack of layers does not have."""
_ALIKE, _DIFFERENT = 0.01, 0.25
"""Relative difference between the given number of parameters and that of the shape: below the first there is no note,
above the second they are of different models."""


class Option(msgspec.Struct, frozen=True):
    """How a part of a description is given: as an option of the verbs, and as a keyword in Python."""

    help: str
    """What --help says of it; a default that is not a value of its own stands in brackets."""
    takes: Number | tuple[str, ...] | None = None
    """The numbers or the names that it may be; None for texts that are read elsewhere, and for switches."""
    metavar: str = "N"
    timed: bool = False
    """Whether only the time of a step depends on it, so that ``dptrace predict --memory`` refuses it."""


_SENT_BY = {"tp": "split layers by --strategy tp", "ep": "spread --experts by --strategy ep"}
"""Which plans have messages of a kind."""
_SOME = Number(0, 1 << 20, whole=True)
_NODES = "Nodes to which a token's experts are limited."
_OVERLAP = "Messages of layers that run under their products: {}."
_SIZE, _NUMBER = Number(1, 1e18), Number(1, 8, whole=True)
_LINK = "Links within and between nodes: names, or 5us:12.5GB/s. [by --gpu]"
_MODEL = "A known model, such as llama3-70b; an unknown name lists all."
_GPU = "a100, h100, b200, rtx4090, mi300x …, or mine:TFLOP/s:GB:GB/s of memory. [h100]"
_SCHEDULE = "Pipeline: {}. [1f1b; without --strategy all]"
_LAYERS_OF = "An MLP by its widths: 784,1024,512,10. Or resnet18."
_SHARE = "Share of the GPU's peak that computation reaches. [by its matrices]"


class Description(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a training; None where it is not given.

    Each field is declared once, with its option: the verbs' options and checks, and :data:`OPTIONS`, follow.
    """

    model: Annotated[str | None, Option(_MODEL, tuple(MODELS), "NAME")] = None
    params: Annotated[float | None, Option("Parameters of the model: 7e9 or 7B.", _SIZE)] = None
    layers_of: Annotated[str | None, Option(_LAYERS_OF, metavar="WIDTHS")] = None
    layers: Annotated[int | None, Option("Layers of the decoder. [by --params]", COUNT)] = None
    hidden: Annotated[int | None, Option("Width of the model. [by --params]", COUNT)] = None
    heads: Annotated[int | None, Option("Heads of the attention. [128 wide each]", COUNT)] = None
    kv_heads: Annotated[int | None, Option("Heads of keys and values. [--heads]", COUNT)] = None
    mlp: Annotated[int | None, Option("Width inside the MLP. [4 × hidden; llama: 8/3]", COUNT)] = None
    vocab: Annotated[int | None, Option("Size of the vocabulary. [51200; llama: 32000]", COUNT)] = None
    seq: Annotated[int, Option("Tokens in a sample.", COUNT)] = 2048
    family: Annotated[str, Option("llama: gated MLP, no biases, no dropout.", FAMILIES, "NAME")] = "gpt"
    experts: Annotated[int, Option("MLPs in each layer, of which a token uses --top-k.", COUNT)] = 1
    top_k: Annotated[int, Option("Experts of a token.", COUNT)] = 2
    shared_experts: Annotated[int, Option("Experts that every token uses, beside those.", _SOME)] = 0
    dense_layers: Annotated[int, Option("First layers with one MLP instead of experts.", _SOME)] = 0
    dense_mlp: Annotated[int | None, Option("Width inside their MLP. [--mlp]", COUNT)] = None
    expert_nodes: Annotated[int | None, Option(_NODES, COUNT, timed=True)] = None
    head_width: Annotated[int | None, Option("Numbers of a head. [hidden / heads]", COUNT)] = None
    kv_rank: Annotated[int, Option("Latent attention (MLA): width before keys and values.", _SOME)] = 0
    query_rank: Annotated[int, Option("MLA: width before queries; 0: none.", _SOME)] = 0
    rope_width: Annotated[int, Option("MLA: numbers of a head that hold the position.", _SOME)] = 0
    precision: Annotated[str, Option("Number types: {}.", tuple(PRECISIONS), "NAME")] = "bf16"
    optimizer: Annotated[str, Option("{}.", tuple(OPTIMIZERS), "NAME")] = "adam"
    master_weights: Annotated[bool | None, Option("A float32 copy. [by --precision]")] = None
    gradient_bytes: Annotated[int | None, Option("Bytes of a gradient. [by --precision]", _NUMBER)] = None
    batch: Annotated[int | None, Option("Samples in a step, over all GPUs. [8 for each GPU]", COUNT)] = None
    micro_batch: Annotated[int | None, Option("Samples that a GPU computes at once.", COUNT)] = None
    recompute: Annotated[str | None, Option("Activations that backward computes again: {}.", RECOMPUTE, "NAME")] = None
    recompute_every: Annotated[int, Option("Recompute those of every N-th layer only.", COUNT)] = 1
    attention: Annotated[str, Option("flash keeps no table of scores.", ("standard", "flash"), "NAME")] = "standard"
    dropout: Annotated[bool | None, Option("Keep dropout's masks. [with --family gpt]")] = None
    fused_loss: Annotated[bool, Option("The loss is one kernel: compiled, or Megatron's; no scores in float32.")] = (
        False
    )
    gpus: Annotated[int, Option("GPUs.", Number(1, 1 << 20, whole=True))] = 8
    gpu: Annotated[str, Option(_GPU, metavar="NAME")] = "h100"
    gpu_memory: Annotated[float | None, Option("Memory of a GPU: 80GB. [by --gpu]", _SIZE, "BYTES")] = None
    gpus_per_node: Annotated[int | None, Option("GPUs of a node. [by --gpu: 8; gb200: 72]", COUNT)] = None
    strategy: Annotated[str | None, Option("{}.", tuple(STRATEGIES), "NAME")] = None
    tp: Annotated[int | None, Option("GPUs that split each layer.", COUNT)] = None
    cp: Annotated[int | None, Option("GPUs that share the tokens of a sample: ring attention.", COUNT)] = None
    pp: Annotated[int | None, Option("Stages of the pipeline.", COUNT)] = None
    ep: Annotated[int | None, Option("GPUs that the experts are spread over.", COUNT)] = None
    expert_tp: Annotated[int | None, Option("GPUs that split each expert. [--tp]", COUNT)] = None
    zero: Annotated[int | None, Option("ZeRO stage. [by --strategy]", Number(0, 3, whole=True))] = None
    shards: Annotated[int | None, Option("GPUs that share a copy of the parameters.", COUNT)] = None
    schedule: Annotated[str | None, Option(_SCHEDULE, SCHEDULES, "NAME")] = None
    virtual_stages: Annotated[int, Option("Of each GPU, interleaved.", COUNT)] = 2
    cpu_offload: Annotated[bool, Option("Shards and optimizer are in the CPU's memory (fsdp, hsdp, zero3).")] = False
    link: Annotated[str | None, Option(_LINK, metavar="A,B", timed=True)] = None
    overlapped: Annotated[str, Option(_OVERLAP, tuple(OVERLAPPED), "NAME")] = "none"
    mfu: Annotated[float | None, Option(_SHARE, Number(above=0, most=1), "SHARE", timed=True)] = None
    measured_within: Link | None = None
    """A measured link within nodes, which is taken as it is."""
    measured_between: Link | None = None
    given: frozenset[str] = frozenset()
    """Names of what was given: the model that is named does not change them, even where they have their defaults."""

    def __post_init__(self) -> None:
        """Take what is not given from the model that is named."""
        without = {name for name, parts in _PARTS_OF.items() if name in self.given and getattr(self, name) in (0, 1)}
        kept = {*self.given, *(part for name in without for part in _PARTS_OF[name])}
        for name, value in self.named.items():
            if name not in kept and getattr(self, name) == DEFAULTS[name]:
                msgspec.structs.force_setattr(self, name, value)

    @property
    def named(self) -> dict[str, Any]:
        """Return the parts that the model's name stands for."""
        row = MODELS.get(self.model or "", {})
        return {name: int(row[name]) if row[name].isdigit() else row[name] for name in _NAMED if row.get(name)}

    def check(self) -> None:
        """Refuse names that are not known, numbers out of range, and a model without a size.

        Raises:
            UsageError: the message names the option.
        """
        self._check_ranges()
        if self.layers_of is not None:
            self._check_stack()
        elif self.params is None and (self.layers is None or self.hidden is None):
            raise UsageError(
                "Give the model: --model llama3-8b, --params 7e9, --layers and --hidden, or --layers-of 784,1024,10."
            )
        if self.recompute_every > 1 and self.recompute in (None, "none"):
            raise UsageError("--recompute-every chooses layers to recompute: add --recompute full, half or selective.")
        if self.schedule == "interleaved" and self.virtual_stages == 1:
            raise UsageError(
                "--virtual-stages 1: interleaved needs 2 stages or more on each GPU; one is 1f1b. Change either."
            )
        if self.cpu_offload and not self.hardware.host:
            raise UsageError(f"--cpu-offload: the {self.hardware.name} and its CPU have one memory. Leave it out.")
        if self.cpu_offload and (self.strategy in ("ddp", "zero1", "zero2") or self.zero in (0, 1, 2)):
            raise UsageError(NOT_SHARDED)
        self._check_experts()

    def check_given(self) -> None:
        """Refuse what :meth:`check` refuses, and options that nothing of what the others describe uses.

        Raises:
            UsageError: the message names the option.
        """
        self.check()
        several, free, experts = self.gpus > 1, self.strategy is None, self.ep or self.experts
        staged = several and (self.pp > 1 if self.pp else free or self.strategy in ("pp", "3d"))
        split = several and (self.tp > 1 if self.tp else free or self.strategy in ("tp", "3d"))
        spread = several and experts > 1 and bool(self.ep or free or self.strategy == "ep")
        wide = experts * (self.tp or (1 if self.strategy == "ep" else self.node))
        nodes = min(self.top_k, -(-min(wide, self.gpus) // self.node)) if spread else 1
        alone = f"--strategy {self.strategy}" if several else "one GPU"
        cut = {"tp": split, "ep": spread}
        unused = {
            "schedule": not staged and f"{'--pp 1' if self.pp else alone} has no pipeline; choose --strategy pp or 3d",
            "virtual_stages": self.schedule != "interleaved" and "is for --schedule interleaved; add that",
            "overlapped": not any(cut[kind] for kind in OVERLAPPED[self.overlapped])
            and f"no plan has such messages; {' or '.join(_SENT_BY[kind] for kind in OVERLAPPED[self.overlapped])}",
            "kv_heads": self.kv_rank and "latent attention (--kv-rank) has keys of its own for each head",
            "expert_nodes": (self.expert_nodes or 0) >= nodes
            and f"a token's experts are on {plural(nodes, 'node')} at most",
            "expert_tp": not split and "no layer is split; add --tp",
            "dense_mlp": not self.dense_layers and "no layer is dense; add --dense-layers",
            "zero": not several and not self.cpu_offload and "one GPU has nothing to shard; add --gpus",
        }
        if self.experts == 1:
            unused |= dict.fromkeys(("top_k", *_OF_EXPERTS), "is of a mixture of experts; add --experts")
        if not self.kv_rank:
            unused |= dict.fromkeys(("query_rank", "rope_width"), "is of latent attention; add --kv-rank")
        for name, why in unused.items():
            if why and name in self.given and getattr(self, name) not in (None, "none", 0):
                reason, _, instead = str(why).partition("; ")
                more = f", or {instead}" if instead else ""
                raise UsageError(f"--{name.replace('_', '-')} {getattr(self, name)}: {reason}. Leave it out{more}.")

    def _check_ranges(self) -> None:
        for name, (option, default) in OPTIONS.items():
            value, takes = getattr(self, name), option.takes
            if takes is None or value is default is None:
                continue
            if isinstance(takes, Number):
                takes.check(value, f"--{name.replace('_', '-')}")
            elif value not in takes:
                known = nearest(str(value), takes)
                raise UsageError(f"--{name} {value}: is not known.{known} Choose from {', '.join(takes)}.")

    def _check_experts(self) -> None:
        """Refuse parts of a mixture of experts without experts, and more than there are."""
        shape = self.shape()
        if self.experts > 1:
            if self.experts < self.top_k:
                raise UsageError(f"--top-k {self.top_k}: a token can't go to more than the {self.experts} experts.")
            if shape.dense_layers >= shape.layers:
                raise UsageError(f"--dense-layers {shape.dense_layers}: the model has {plural(shape.layers, 'layer')}.")
            return
        if self.ep or self.expert_tp or self.strategy == "ep":
            raise UsageError("Expert parallelism spreads experts over GPUs: add --experts.")

    @property
    def hardware(self) -> Gpu:
        """Return the GPU with the memory that is given.

        Raises:
            UsageError: no GPU has this name.
        """
        gpu = gpu_named(self.gpu, PRECISIONS[self.precision].compute)
        return msgspec.structs.replace(gpu, memory_bytes=self.gpu_memory) if self.gpu_memory else gpu

    @property
    def node(self) -> int:
        """Return the GPUs of a node, as given or as usual."""
        return self.gpus_per_node or self.hardware.gpus_per_node

    @property
    def links(self) -> str:
        """Return the links as given, or as usual for the GPU."""
        gpu = self.hardware
        return self.link or f"{gpu.within},{gpu.between}"

    def _check_stack(self) -> None:
        """Refuse parts of a decoder next to the layers of an MLP."""
        for name in _OF_DECODERS:
            if getattr(self, name) != OPTIONS[name][1]:
                option = f"--{name.replace('_', '-')}"
                raise UsageError(f"{option}: is of a decoder; --layers-of describes the whole model. Leave one out.")
        if (self.tp or 1) > 1 or self.strategy in ("tp", "3d"):
            raise UsageError("Tensor parallelism splits decoders only; --layers-of describes other layers.")

    def shape(self) -> ModelShape:
        """Return the model's shape; of parameters and a part of the shape, the rest is derived.

        Raises:
            UsageError: parameters and shape are of different models, or its heads do not divide its width.
        """
        return _shape_of(self)

    def decoder(self, layers: int, hidden: int, heads: int | None = None) -> ModelShape:
        """Return a shape with what the description says beside its depth and width."""
        own = {name: getattr(self, name) or 0 for name in _OF_SHAPE}
        own |= {
            "key_value_heads": self.kv_heads,
            "counted": self.params,
            "top_k": self.top_k if self.experts > 1 else 1,
        }
        words = self.vocab or (32_000 if self.family == "llama" else 51_200)
        heads, mlp, family = self.heads or heads, self.mlp, self.family
        return decoder_shape(
            layers, hidden, heads=heads, mlp=mlp, vocabulary=words, sequence=self.seq, family=family, **own
        )

    def network(self) -> Network:
        """Return the links, of those that are named with the share of their bandwidth that collectives reach.

        Raises:
            UsageError: a link is not known.
        """
        within, between = within_and_between(self.links)
        near = self.measured_within or reached_link(within, WITHIN)
        far = self.measured_between or reached_link(between, BETWEEN)
        return Network(near, far, self.node)

    @property
    def local(self) -> int:
        """Return the GPUs of a node that take part: all of it, or as many as divide the GPUs evenly."""
        return math.gcd(self.gpus, self.node) if self.gpus > self.node else self.gpus

    def layout(
        self, strategy: str, tensor: int | None = None, stages: int | None = None, context: int | None = None
    ) -> Layout:
        """Return the layout of a strategy; degrees that are not given have usual values.

        Raises:
            UsageError: the degrees do not divide the number of GPUs, or do not belong to the strategy.
        """
        gpus, node, experts, schedule = self.gpus, self.local, self.experts, self.schedule or "1f1b"
        tensor = tensor or self.tp or (node if strategy in ("tp", "3d") else 1)
        context = context or self.cp or 1
        most = gpus // (tensor * context)
        stages = stages or self.pp or {"pp": node, "3d": max(1, min(4, most))}.get(strategy, 1)
        if gpus % (tensor * stages * context):
            cp = f" × cp {context}" if context > 1 else ""
            raise UsageError(f"{plural(gpus, 'GPU')} can't be divided into tp {tensor} × pp {stages}{cp}.")
        replicas = gpus // (tensor * stages)
        expert = (self.ep or math.gcd(experts, replicas)) if strategy == "ep" or self.ep else 1
        whole = self._with_experts(replicas, tensor)
        alone = strategy == "ep" and expert == 1 and not self.ep
        if whole % expert or experts % expert or alone:
            more = "; --expert-tp 1 adds those that split layers" if tensor > 1 and not self.expert_tp else ""
            some = "" if alone else f"{expert} of "
            raise UsageError(
                f"{plural(experts, 'expert')} can't be spread over {some}{plural(whole, 'GPU')}, which must divide "
                f"them{more}."
            )
        stage = _zero_stage(strategy, self.zero)
        shards = _shards(strategy, stage, replicas, node, self.shards)
        folded = shards * whole // replicas
        if expert > 1 and folded % expert and expert % folded:
            raise UsageError(f"--ep {expert}: must divide the {shards} GPUs that share a copy, or be a multiple.")
        return Layout(
            strategy=strategy,
            data=replicas // context,
            tensor=tensor,
            context=context,
            stages=stages,
            expert=expert,
            expert_tensor=self.expert_tp or 0,
            zero=stage,
            shards=shards,
            sequence=tensor > 1,
            schedule=schedule,
            virtual_stages=self.virtual_stages if schedule == "interleaved" else 1,
        )

    def _with_experts(self, replicas: int, tensor: int) -> int:
        """Return the GPUs of a stage over which whole experts can be spread, those that split layers among them."""
        whole, rest = divmod(replicas * tensor, self.expert_tp or tensor)
        if rest or tensor % (self.expert_tp or tensor):
            split = plural(tensor, "GPU")
            raise UsageError(f"--expert-tp {self.expert_tp}: must divide the {split} that split a layer, --tp.")
        return whole

    @property
    def samples_each(self) -> int:
        """Return the samples of each GPU in a step, unless the batch is given: whole micro-batches."""
        usual, size = 256 if isinstance(self.shape(), LayerStack) else _SAMPLES_EACH, self.micro_batch or 1
        return math.ceil(usual / size) * size

    @property
    def samples(self) -> int:
        """Return the samples of a step."""
        return self.batch or self.samples_each * self.gpus

    def plan(self, layout: Layout, batch: int, micro_batch: int, recompute: str) -> Plan:
        """Return one plan."""
        return Plan(
            shape=self.shape(),
            layout=layout,
            gpu=self.hardware,
            network=self.network(),
            batch=batch,
            micro_batch=micro_batch,
            recompute=recompute,
            offload=self.cpu_offload and layout.zero == 3,
            flash=self.attention == "flash",
            dropout=self._has_dropout(),
            **{part: getattr(self, name) for name, part in _OF_PLAN.items()},
        )

    def _has_dropout(self) -> bool:
        usual = self.family == "gpt" and not isinstance(self.shape(), LayerStack)
        return usual if self.dropout is None else self.dropout

    def assumptions(self) -> list[str]:
        """Return what was not given, a sentence each."""
        shape = self.shape()
        said = []
        given = [f"--{name}" for name in ("params", "layers", "hidden") if getattr(self, name) is not None]
        if isinstance(shape, LayerStack):
            if self.layers_of is None:
                said.append(f"So few parameters are taken for an MLP: {shape.text}. Describe others by --layers-of.")
        elif self.layers is None or self.hidden is None:
            said.append(
                f"Shape {'derived' if len(given) > 1 else 'assumed'} from {' and '.join(given)}: "
                f"{plural(shape.layers, 'layer')}, hidden size {shape.hidden:,}, {plural(shape.heads, 'head')}."
            )
        if abs(shape.scale - 1) > _ALIKE:
            said.append(
                f"The shape has {shape.shape_parameters:.4g} parameters; figures are scaled to the {self.params:.4g} "
                "given."
            )
        if note := MODELS.get(self.model or "", {}).get("note"):
            said.append(f"{self.model}: {note}")
        if "seq" not in self.given and not isinstance(shape, LayerStack):
            said.append(f"Samples assumed: of {plural(self.seq, 'token')}. Give --seq.")
        if self.batch is None:
            said.append(
                f"Batch assumed: {plural(self.samples_each, 'sample')} for each GPU, {self.samples:,} together."
            )
        return said


_ZERO = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3, "hsdp": 3}
"""The stage of ZeRO that a strategy is."""


def _zero_stage(strategy: str, given: int | None) -> int:
    own = _ZERO.get(strategy)
    if given is not None and own not in (None, given):
        what = f"is ZeRO stage {own}" if own else "shards nothing"
        raise UsageError(f"--strategy {strategy} {what}: leave --zero {given} out, or the strategy.")
    usual = 1 if strategy == "3d" else 0
    return given if given is not None else usual if own is None else own


def _shards(strategy: str, stage: int, data: int, node: int, given: int | None) -> int:
    """Return the GPUs that share a copy: the given number, else those of a node for hsdp, and all for others."""
    if given is None:
        return 1 if not stage else math.gcd(data, node) if strategy == "hsdp" else data
    if stage < 3 or (strategy in ("fsdp", "zero3") and given != data):
        raise UsageError(f"--shards {given}: is for parameters sharded in groups; add --strategy hsdp, or --zero 3.")
    if data % given:
        raise UsageError(f"--shards {given}: must divide the {data} data-parallel GPUs.")
    return given


@lru_cache(maxsize=64)  # asked for with every plan
def _shape_of(described: Description) -> ModelShape:
    if described.layers_of is not None:
        return layer_stack(described.layers_of)
    if (described.params or _SMALL) < _SMALL and all(
        getattr(described, name) == OPTIONS[name][1] for name in _OF_DECODERS if name != "params"
    ):
        return _small_perceptron(described.params or 1.0)
    layers, hidden, heads = described.layers, described.hidden, None
    if layers is None or hidden is None:
        assert described.params is not None
        if layers is None and hidden is None:
            layers, hidden, heads = _assumed_shape(described, described.params)
        elif hidden is not None:
            layers = _fitting_layers(described, described.params, hidden)
        elif layers is not None:
            hidden = _fitting_width(described, described.params, layers)
    shape = described.decoder(layers or 1, hidden or 1, heads)
    whole = described.head_width or not (hidden or 0) % shape.heads
    if hidden is not None and (not whole or shape.heads % shape.key_value_heads):
        raise UsageError(
            f"--heads {shape.heads}, --kv-heads {shape.key_value_heads}: heads must divide the hidden size of "
            f"{hidden:,}, and those of keys the heads."
        )
    if (described.layers or described.hidden or described.experts > 1) and abs(shape.scale - 1) > _DIFFERENT:
        raise UsageError(
            f"--params {described.params:g}: {plural(shape.layers, 'layer')} of {shape.hidden} have "
            f"{shape.shape_parameters:.3g} parameters. "
            + ("Leave one of them out." if described.layers or described.hidden else "Give --layers and --hidden.")
        )
    return shape


def _assumed_shape(described: Description, params: float) -> tuple[int, int, int]:
    """Return layers, hidden and heads of a published model, of experts by the layers that make up the parameters.

    Raises:
        UsageError: a table of positions would have most of the parameters.
    """
    if described.experts > 1:
        fitting = ((_fitting_layers(described, params, hidden), own, hidden, heads) for _, own, hidden, heads in KNOWN)
        return next(((few, hidden, heads) for few, own, hidden, heads in fitting if few <= own), KNOWN[-1][1:])
    layers, hidden, heads = assumed_shape(params)
    table = hidden * described.seq
    if described.family == "gpt" and table > _DIFFERENT * params:
        raise UsageError(
            f"--seq {described.seq}: a table of positions {hidden:,} wide has {table:.3g} parameters, of {params:.3g} "
            "together. Add --family llama, which has none, or give --layers and --hidden."
        )
    return layers, hidden, heads


def _small_perceptron(params: float) -> LayerStack:
    """Return an MLP with three equal hidden layers between the 784 pixels and 10 classes of the GPU workshop."""
    ends = 784 + 10 + 3
    width = (math.sqrt(ends * ends + 8 * max(0.0, params - 10)) - ends) / 4
    middle = max(1, round(width))
    return perceptron([784, middle, middle, middle, 10])


def _fitting_layers(described: Description, params: float, hidden: int) -> int:
    """Return how many layers of a width have a number of parameters, with the tables at both ends."""
    one, two = (described.decoder(layers, hidden).shape_parameters for layers in (1, 2))
    layers: float = 1 + (params - one) / (two - one)
    return max(1, int(layers + 0.5))


def _fitting_width(described: Description, params: float, layers: int) -> int:
    """Return the width with which layers come nearest to a number of parameters: heads of 64 or 128 numbers."""
    widths = [*range(64, 2048, 64), *range(2048, 1 << 16, 128)]
    widths = [width for width in widths if width % (described.heads or 1) == 0] or [described.heads or 1]
    nearest: int = min(widths, key=lambda width: abs(described.decoder(layers, width).shape_parameters - params))
    return nearest


def _options() -> dict[str, tuple[Option, Any]]:
    hints = get_type_hints(Description, include_extras=True)
    options = {name: hint.__metadata__[0] for name, hint in hints.items() if hasattr(hint, "__metadata__")}
    return {name: (option, DEFAULTS[name]) for name, option in options.items()}


_FIELDS = Description.__struct_fields__
DEFAULTS = dict(zip(_FIELDS, Description.__struct_defaults__, strict=True))
"""The parts of a description as they are where they are not given."""
_NAMED = [name for name in _FIELDS if name in next(iter(MODELS.values()))]
OPTIONS = _options()
"""The options of a description by the names of their fields, each with its default."""
