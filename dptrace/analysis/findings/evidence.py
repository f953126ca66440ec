"""What a finding was made of, by its kind: where to look, and the figures behind its text.

Fields stand in the order of the keys in JSON; one that has its default is left out there.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from dptrace.core.table import with_missing

_TAG = "of"
"""Names the class in what is cached."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field=_TAG, tag=True):
    """Where to look for what a finding is about; of a finding that says it in its text, nothing."""

    @property
    def rank(self) -> int | None:
        """The rank to look at."""
        return None

    @property
    def step(self) -> str | None:
        """The step to look at."""
        return None

    @property
    def collective(self) -> str | None:
        """Kind of the collectives that it is about."""
        return None

    @property
    def instance(self) -> int | None:
        """The collective to look at, by its number among those that are matched."""
        return None

    @property
    def once(self) -> bool | None:
        """Whether it happened in one of several steps; None where steps are not told apart."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain data."""
        data: dict[str, Any] = msgspec.to_builtins(self, enc_hook=np.generic.item)
        del data[_TAG]
        return with_missing(data)


class Straggler(Evidence, frozen=True, kw_only=True):
    """Ranks that others wait for."""

    rank: int
    step: str | None
    collective: str
    cause: str
    what: str
    where: str
    instance: int | None
    late_ns: int
    once: bool | None = None
    count: int
    """Collectives in which others wait for them."""
    ranks: list[int]
    waiting_ranks: list[int]
    lost_by_step_ns: dict[str, int] | None = None
    lost_by_rank_ns: dict[str, int] | None = None
    node: str | None = None
    """The node whose ranks are all late."""


class Jitter(Evidence, frozen=True, kw_only=True):
    """Ranks that are late in turns."""

    rank: int
    step: str | None
    ranks: list[int]
    cause: str | None = None
    """``no_core`` where that is most of it."""


class LastGradients(msgspec.Struct, frozen=True):
    """The last message of gradients in a step."""

    name: str
    bytes: int | None
    step: str


class ExposedComm(Evidence, frozen=True, kw_only=True):
    """A kind of collective that is not overlapped; figures are of a step, of all devices together."""

    collective: str
    step: str | None
    rank: int
    exposed_ns: int
    after_backward_share: float
    count: float
    bytes: float | None
    last: LastGradients | None = None


class FirstBucket(Evidence, frozen=True, kw_only=True):
    """Gradients that start late."""

    rank: int
    step: str
    ns: int
    name: str
    bytes: int
    share_of_gradients: float
    delay_ns: int


class SmallMessages(Evidence, frozen=True, kw_only=True):
    """Messages whose latency takes longer than their transfer; figures are of a step."""

    collective: str
    group: str
    count: float
    bytes: float
    crossover_bytes: float
    alpha_ns: float
    step: str
    instance: int
    part_of: str


class LowBandwidth(Evidence, frozen=True, kw_only=True):
    """Large messages that are slower than the links or other groups."""

    collective: str
    group: str
    busbw_gbps: float
    reference_gbps: float
    count: int
    step: str | None
    instance: int
    bytes: int


class SlowCollectives(Evidence, frozen=True, kw_only=True):
    """Single collectives with a far longer transfer than comparable ones."""

    collective: str
    instance: int
    step: str | None
    count: int
    ns: int


class Idle(Evidence, frozen=True, kw_only=True):
    """Idle time of one cause, on the rank and in the step with most."""

    rank: int
    step: str
    ns: int
    once: bool | None
    what: str | None = None
    where: str | None = None
    ranks: list[int] | None = None
    """Those whose hosts all pause there; of idle GPUs, none."""
    gaps_ns: list[int] | None = None
    unprofiled_step_ns: int | None = None
    unprofiled_gain_ns: int | None = None


class Bubble(Evidence, frozen=True, kw_only=True):
    """Time in which stages of a pipeline have nothing to do."""

    step: str
    rank: int
    ns: int
    bubble_percent: float
    formula_percent: float | None
    schedule: str
    micro_batches: int


class Recompute(Evidence, frozen=True, kw_only=True):
    """Forward work that is recomputed in backward."""

    rank: int
    step: str
    ns: int


class UnusedParameters(Evidence, frozen=True, kw_only=True):
    """DDP's search for unused parameters."""

    rank: int
    step: str
    ns: int
    host_ns: int
    all_used: bool | None


class SlowGpu(Evidence, frozen=True, kw_only=True):
    """A GPU that computes the same kernels more slowly than the others."""

    rank: int
    ratio: float
    kernel: str


class PageableCopies(Evidence, frozen=True, kw_only=True):
    """Copies between a GPU and pageable memory."""

    copies: list[str]


class Interference(Evidence, frozen=True, kw_only=True):
    """Compute that is slower while communication runs."""

    ratio: float


class UnfusedAttention(Evidence, frozen=True, kw_only=True):
    """Attention whose scores are written to memory."""

    operators: list[str]


class ElementwiseChains(Evidence, frozen=True, kw_only=True):
    """Elementwise kernels that follow each other."""

    chain: str


class Product(msgspec.Struct, frozen=True):
    """A matrix product or convolution, by its shape."""

    operator: str
    input_dims: list[Any]
    dtype: str
    calls_per_step: float
    share_of_roofline: float


class SlowProducts(Evidence, frozen=True, kw_only=True):
    """Products far below the roofline, the costliest first."""

    products: list[Product]


AnyEvidence = (
    Evidence
    | Straggler
    | Jitter
    | ExposedComm
    | FirstBucket
    | SmallMessages
    | LowBandwidth
    | SlowCollectives
    | Idle
    | Bubble
    | Recompute
    | UnusedParameters
    | SlowGpu
    | PageableCopies
    | Interference
    | UnfusedAttention
    | ElementwiseChains
    | SlowProducts
)
"""That of a finding of any kind."""
