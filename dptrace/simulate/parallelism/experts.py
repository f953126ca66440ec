"""Mixture of experts: tokens travel to the ranks of their experts, and the results travel back."""

from __future__ import annotations

import math

import numpy as np

from dptrace.core.units import plural
from dptrace.errors import UsageError
from dptrace.simulate.cluster import Numbers
from dptrace.simulate.costs import cost_of
from dptrace.simulate.explanation import Message, Outcome, letter, verify
from dptrace.simulate.group import Group
from dptrace.simulate.parallelism.network import WIDTH, samples
from dptrace.simulate.settings import Settings

__all__ = ["moe"]

_MOST_TOKENS = 32
_UNIT = "one token in an expert; router and all-to-all take one each"
_COLUMNS = ("tokens", "to expert", "at the expert", "results")


class _Experts:
    """One expert on each rank, and the tokens of all ranks with the experts that the router chose for them."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.ranks, self.top_k = settings, settings.ranks, settings.top_k
        self.group = Group(settings, _COLUMNS)
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
        source, target = (expert, rank) if back else (rank, expert)
        column, into = (2, 3) if back else (0, 2)
        size = len(tokens) / settings.tokens * settings.size_bytes
        between = settings.node_of(rank) != settings.node_of(expert)
        return Message(source, target, column, into, names, (), size, between_nodes=between)

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


def moe(settings: Settings) -> Outcome:
    """Route tokens to experts and back, with a limit to how many a rank may send to one expert.

    Raises:
        UsageError: a number is out of range.
    """
    ranks = settings.ranks
    if not 1 <= settings.tokens <= _MOST_TOKENS:
        raise UsageError(f"--tokens {settings.tokens}: must be from 1 to {_MOST_TOKENS}.")
    if not 1 <= settings.top_k <= ranks:
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
    cost = cost_of(
        steps,
        settings,
        "bytes of the tokens of one rank",
        "2(P-1)·alpha + 2k(P-1)/P·n·beta with even routing; here as routed",
        [
            f"{experts.limit}; {plural(experts.dropped, 'choice')} dropped.",
            f"Tokens by expert: {', '.join(map(str, loads))}; the fullest has {imbalance:.2f} times the mean.",
            "Backward sends the same again.",
        ],
        {"dropped": float(experts.dropped), "imbalance": imbalance},
    )
    return group.outcome(steps, cost, experts.check(), _UNIT)
