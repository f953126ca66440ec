"""Tensor and expert parallelism, step by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from dptrace.core.units import plural
from dptrace.errors import UsageError
from dptrace.simulate.cluster import Group, Numbers
from dptrace.simulate.data_parallel import WIDTH, samples
from dptrace.simulate.explanation import Message, Outcome, Settings, letter, megabytes, verify

# Tensor parallelism: a pair of linear layers, the first split by columns and the second by rows (Megatron-LM).


_FEATURES, _INNER = 4, 2
"""Features of a token, and columns of the first layer on each rank."""
_UNIT = "the product of all tokens with a rank's part of one weight"
_COLUMNS = ("X", "H", "Y", "dY", "dH", "dX")
_TWICE = (
    "A transformer layer has two such pairs, attention and MLP: twice as much in all. Nothing hides it, since the next "
    "layer needs the result."
)
_COUNTED = "bytes of the activation, tokens × features"


class _Split:
    """The two weights in parts, and what every rank computes from its parts."""

    def __init__(self, settings: Settings, by_tokens: bool) -> None:
        self.ranks, self.group, self.by_tokens = settings.ranks, Group(settings, _COLUMNS), by_tokens
        random = np.random.default_rng(0)
        self.x = random.normal(size=(2 * self.ranks, _FEATURES))
        self.first = random.normal(size=(_FEATURES, _INNER * self.ranks))
        self.second = random.normal(size=(_INNER * self.ranks, _FEATURES))
        self.of_y = random.normal(size=self.x.shape)
        self.columns = np.split(self.first, self.ranks, axis=1)
        self.rows = np.split(self.second, self.ranks, axis=0)
        self.result: dict[str, list[Numbers]] = {}
        for name, array in (("X", self.x), ("dY", self.of_y)):
            parts = np.split(array, self.ranks) if by_tokens else [array] * self.ranks
            self._keep(name, parts, "tokens {}" if by_tokens else "all", "own")

    def _keep(self, name: str, parts: Sequence[Numbers], label: str, state: str) -> None:
        self.result[name] = list(parts)
        for rank, part in enumerate(parts):
            self.group.show(rank, name, label.format(rank), state, part)

    def gather(self, name: str) -> list[Message]:
        whole = np.concatenate(self.result[name])
        self._keep(name, [whole] * self.ranks, "all", "copy")
        return self.group.ring(name, f"tokens of {name}", 1)

    def hidden(self) -> None:
        parts = [np.tanh(x @ column) for x, column in zip(self.result["X"], self.columns, strict=True)]
        self._keep("H", parts, "columns {}", "own")

    def output(self) -> None:
        parts = [hidden @ row for hidden, row in zip(self.result["H"], self.rows, strict=True)]
        self._keep("Y", parts, "part {}", "partial")

    def sum(self, name: str) -> list[Message]:
        total = np.sum(self.result[name], axis=0)
        if self.by_tokens:
            self._keep(name, np.split(total, self.ranks), "tokens {}", "done")
            return self.group.ring(name, f"tokens of {name}", 1)
        self._keep(name, [total] * self.ranks, "all", "done")
        return self.group.ring(name, f"partial sums of {name}", 1, turns=2)

    def of_hidden(self) -> None:
        self.of_second = [hidden.T @ of_y for hidden, of_y in self._pairs("H", "dY")]
        inner = [of_y @ row.T for of_y, row in zip(self.result["dY"], self.rows, strict=True)]
        parts = [of_h * (1 - hidden**2) for of_h, hidden in zip(inner, self.result["H"], strict=True)]
        self._keep("dH", parts, "columns {}", "own")

    def of_input(self) -> None:
        self.of_first = [x.T @ of_h for x, of_h in self._pairs("X", "dH")]
        parts = [of_h @ column.T for of_h, column in zip(self.result["dH"], self.columns, strict=True)]
        self._keep("dX", parts, "part {}", "partial")

    def _pairs(self, one: str, other: str) -> zip[tuple[Numbers, Numbers]]:
        return zip(self.result[one], self.result[other], strict=True)

    def check(self) -> str:
        hidden = np.tanh(self.x @ self.first)
        y = hidden @ self.second
        of_hidden = (self.of_y @ self.second.T) * (1 - hidden**2)
        expected = {"Y": y, "dX": of_hidden @ self.first.T}
        for name, array in expected.items():
            parts = np.split(array, self.ranks) if self.by_tokens else [array] * self.ranks
            for actual, part in zip(self.result[name], parts, strict=True):
                verify(actual, part, name)
        verify(np.concatenate(self.of_first, axis=1), self.x.T @ of_hidden, "the gradient of the first weight")
        verify(np.concatenate(self.of_second), hidden.T @ self.of_y, "the gradient of the second weight")
        return (
            "The output, the gradient of the input and the gradients of both weights, put together, equal NumPy's for "
            "the weights in one piece."
        )


def _pair_of_layers(settings: Settings, by_tokens: bool) -> Outcome:
    """Multiply with columns, then with rows, and sum the parts: by all-reduces, or *by_tokens* by halves of them."""
    split = _Split(settings, by_tokens)
    _schedule(split)
    steps = split.group.steps()
    times = "2 all-gathers and 2 reduce-scatters" if by_tokens else "2 all-reduces"
    kept = settings.size_bytes / (settings.ranks if by_tokens else 1)
    return split.group.outcome(
        steps,
        split.check(),
        _UNIT,
        _COUNTED,
        f"4(P-1)·alpha + 4(P-1)/P·n·beta, {times}",
        [f"Outside of the two layers a rank keeps {megabytes(kept)} of each activation.", _TWICE],
        None,
        split.group.ring_seconds(4, 4),
    )


def _schedule(split: _Split) -> None:
    """Add forward, then backward, each of which waits for the one before it."""
    last: list[int] = []

    def add(kind: str, label: str, title: str, run: Callable[[], list[Message] | None]) -> None:
        last[:] = [split.group.add(kind, label, title, run, last)]

    both = (("X", "H", "Y", split.hidden, split.output), ("dY", "dH", "dX", split.of_hidden, split.of_input))
    for kind, (given, inner, result, compute, finish) in zip(("forward", "backward"), both, strict=True):
        forward = kind == "forward"
        if split.by_tokens:
            add("communication", f"AG {given}", f"all-gather of the tokens of {given}", partial(split.gather, given))
        product = "tanh(X·W1), with the rank's columns of W1" if forward else "dY·W2ᵀ, with the rank's rows of W2"
        add(kind, inner, product, compute)
        product = "H·W2, with the rank's rows of W2" if forward else "dH·W1ᵀ, with the rank's columns of W1"
        add(kind, result, f"{product}: a part of the sum", finish)
        name, code = ("reduce-scatter", "RS") if split.by_tokens else ("all-reduce", "AR")
        add("communication", f"{code} {result}", f"{name} of the partial sums of {result}", partial(split.sum, result))


# Mixture of experts: tokens travel to the ranks of their experts, and the results travel back.


_EXPERT_UNIT = "one token in an expert; router and all-to-all take one each"
_EXPERT_COLUMNS = ("tokens", "to expert", "at the expert", "results")


class _Experts:
    """One expert on each rank, and the tokens of all ranks with the experts that the router chose for them."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.ranks, self.top_k = settings, settings.ranks, settings.top_k
        self.group = Group(settings, _EXPERT_COLUMNS)
        random = np.random.default_rng(0)
        self.tokens = samples(self.ranks, settings.tokens)
        self.experts = random.normal(size=(self.ranks, WIDTH, WIDTH))
        scores = np.exp(self.tokens @ random.normal(size=(WIDTH, self.ranks)))
        self.gates = scores / scores.sum(axis=-1, keepdims=True)
        self.choices = np.argsort(-self.gates, axis=-1)[..., : self.top_k]
        share = settings.tokens * self.top_k / self.ranks
        self.capacity = math.ceil(settings.capacity_factor * share)
        # By expert: rank, token and values of what it has received; then of what it has computed.
        self.inbox: list[list[tuple[int, int, Numbers]]] = [[] for _ in range(self.ranks)]
        self.kept: list[list[tuple[int, int]]] = [[] for _ in range(self.ranks)]
        self.outputs = np.zeros_like(self.tokens)
        for rank in range(self.ranks):
            names = " ".join(self._name(rank, token) for token in range(settings.tokens))
            self.group.show(rank, "tokens", names, "own", self.tokens[rank])
            self._route(rank)

    @staticmethod
    def _name(rank: int, token: int) -> str:
        return f"{letter(rank)}{token}"

    def _route(self, rank: int) -> None:
        """Keep a token for an expert while the rank has sent it fewer than the capacity; drop it otherwise."""
        sent = [0] * self.ranks
        for token, experts in enumerate(self.choices[rank]):
            for expert in map(int, experts):
                if sent[expert] < self.capacity:
                    sent[expert] += 1
                    self.kept[rank].append((token, expert))

    @property
    def dropped(self) -> int:
        """How many assignments of a token to an expert exceed the capacity."""
        return self.choices.size - sum(map(len, self.kept))

    @property
    def limit(self) -> str:
        """Describe the capacity, and how it is computed."""
        tokens = plural(self.capacity, "token")
        numbers = f"{self.settings.capacity_factor:g} × {self.settings.tokens} × {self.top_k} / {self.ranks}"
        return f"Capacity: {tokens} from each rank to each expert, ceil({numbers})"

    def show_routes(self) -> None:
        for rank, kept in enumerate(self.kept):
            shown = [
                "/".join(str(expert) if (token, expert) in kept else "–" for expert in map(int, experts))
                for token, experts in enumerate(self.choices[rank])
            ]
            self.group.show(rank, "to expert", " ".join(shown), "own")

    def dispatch(self) -> list[Message]:
        for rank, kept in enumerate(self.kept):
            for token, expert in kept:
                self.inbox[expert].append((rank, token, self.tokens[rank, token]))
        for expert, received in enumerate(self.inbox):
            names = " ".join(self._name(rank, token) for rank, token, _ in received)
            self.group.show(expert, "at the expert", names, "copy" if names else "empty")
        return self._messages(back=False)

    def compute(self) -> None:
        for expert, received in enumerate(self.inbox):
            self.inbox[expert] = [(rank, token, np.tanh(x @ self.experts[expert])) for rank, token, x in received]

    def combine(self) -> list[Message]:
        for expert, results in enumerate(self.inbox):
            for rank, token, y in results:
                self.outputs[rank, token] += self.gates[rank, token, expert] * y
        for rank, kept in enumerate(self.kept):
            names = " ".join(self._name(rank, token) for token in sorted({token for token, _ in kept}))
            self.group.show(rank, "results", names, "done", self.outputs[rank])
        return self._messages(back=True)

    def _messages(self, back: bool) -> list[Message]:
        """Return one message for each pair of ranks between which tokens travel; *back* from the expert's rank."""
        found = []
        for rank, kept in enumerate(self.kept):
            for expert in range(self.ranks):
                tokens = [token for token, chosen in kept if chosen == expert]
                if tokens and expert != rank:
                    found.append(self._message(rank, expert, tokens, back))
        return found

    def _message(self, rank: int, expert: int, tokens: list[int], back: bool) -> Message:
        settings = self.settings
        names = " ".join(self._name(rank, token) for token in tokens)
        ends = (expert, rank) if back else (rank, expert)
        column, into = (2, 3) if back else (0, 2)
        size = len(tokens) / settings.tokens * settings.size_bytes
        return settings.message(*ends, names, size, column=column, into=into)

    def check(self) -> str:
        """Compare with every expert applied to every token, masked by the choices within capacity."""
        chosen = np.zeros((*self.gates.shape[:2], self.top_k, self.ranks))
        np.put_along_axis(chosen, self.choices[..., None], 1, axis=-1)
        # In the order in which tokens are sent, an assignment is kept while those up to it are within capacity.
        order = chosen.reshape(self.ranks, -1, self.ranks)
        kept = order * (np.cumsum(order, axis=1) <= self.capacity)
        mask = kept.reshape(chosen.shape).sum(axis=2)
        every = np.tanh(np.einsum("rtw,ewv->rtev", self.tokens, self.experts))
        verify(self.outputs, np.einsum("rte,rtev->rtv", mask * self.gates, every), "the experts' results")
        return "The results equal NumPy's for all experts applied to all tokens, masked by the router's choices."


def _moe(settings: Settings) -> Outcome:
    """Route tokens to experts and back, with a limit to how many a rank may send to one expert.

    Raises:
        UsageError: a token would choose more experts than there are.
    """
    ranks = settings.ranks
    if settings.top_k > ranks:
        raise UsageError(f"--top-k {settings.top_k}: must be from 1 to {ranks}, the number of experts.")
    experts = _Experts(settings)
    group = experts.group
    last = group.add("other", "R", "the router chooses experts; – marks a choice beyond capacity", experts.show_routes)
    last = group.add("communication", "A2A", "all-to-all: dispatch tokens to their experts", experts.dispatch, [last])
    loads = [sum(expert == chosen for kept in experts.kept for _, chosen in kept) for expert in range(ranks)]
    title = "each expert computes its tokens; all wait for the fullest"
    last = group.add("forward", "E", title, experts.compute, [last], loads)
    title = "all-to-all: combine, results go back to their ranks"
    group.add("communication", "A2A", title, experts.combine, [last])
    steps = group.steps()
    imbalance = max(loads) * ranks / sum(loads)
    return group.outcome(
        steps,
        experts.check(),
        _EXPERT_UNIT,
        "bytes of the tokens of one rank",
        "2(P-1)·alpha + 2k(P-1)/P·n·beta with even routing; here as routed",
        [
            f"{experts.limit}; {plural(experts.dropped, 'choice')} dropped.",
            f"Tokens by expert: {', '.join(map(str, loads))}; the fullest has {imbalance:.2f} times the mean.",
            "Backward sends the same again.",
        ],
        {"dropped": float(experts.dropped), "imbalance": imbalance},
    )


def simulate(name: str, settings: Settings) -> Outcome:
    """Carry out ``tp``, ``sp`` (with the tokens divided as well) or ``moe``.

    Raises:
        UsageError: a token would choose more experts than there are.
    """
    return _moe(settings) if name == "moe" else _pair_of_layers(settings, by_tokens=name == "sp")
