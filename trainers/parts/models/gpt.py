"""A plain text decoder: token and position embeddings, blocks of attention and MLP, and a head.

Attention and MLP consist of separately named linear layers, so that tensor parallelism can split them.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from dptrace.record.options.models import DECODERS
from dptrace.record.options.validation import SAMPLES

SIZES = DECODERS


class Attention(nn.Module):
    """Causal self-attention; the width of ``query`` determines the number of heads, so that a rank can hold some."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_width = width // heads
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (
            layer(x).unflatten(-1, (-1, self.head_width)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        attended = scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.out(attended.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    """The MLP of a block."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(gelu(self.up(x)))


class Block(nn.Module):
    """Attention, then the MLP, each with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp: nn.Module = FeedForward(width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        return x + self.mlp(self.mlp_norm(x))


class Embedding(nn.Module):
    """Map tokens, integers of shape (batch, time), to vectors."""

    def __init__(self, width: int, vocabulary: int, context: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(context, width)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))


class Head(nn.Module):
    """Map vectors to the scores of each next token."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.norm(x))


def build(name: str) -> nn.Sequential:
    """Build the model, with parameters from torch's current seed: embedding, blocks, head."""
    size = SIZES[name]
    width, vocabulary = size["width"], size["vocabulary"]
    blocks = [Block(width, size["heads"]) for _ in range(size["depth"])]
    return nn.Sequential(Embedding(width, vocabulary, size["context"]), *blocks, Head(width, vocabulary))


def stage_shapes(name: str, samples: int, stages: int, dtype: str) -> list[tuple[Tensor, Tensor]]:
    """Return the input and the output of each stage of a pipeline for some samples, on the meta device."""
    size = SIZES[name]
    tokens = torch.empty(samples, size["context"], dtype=torch.int64, device="meta")
    hidden, scores = (
        torch.empty(*tokens.shape, size[width], dtype=getattr(torch, dtype), device="meta", requires_grad=True)
        for width in ("width", "vocabulary")
    )
    return list(pairwise([tokens, *[hidden] * (stages - 1), scores]))


class Text:
    """Synthetic text in which one of two tokens mostly follows each token, so that there is something to learn."""

    def __init__(self, name: str, seed: int) -> None:
        size = SIZES[name]
        self.context, self.vocabulary, self.seed = size["context"], size["vocabulary"], seed

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, rows: slice) -> tuple[Tensor, Tensor]:
        lines = [self._line(row) for row in range(*rows.indices(len(self)))]
        text = torch.stack(lines)
        return text[:, :-1], text[:, 1:]

    def _line(self, row: int) -> Tensor:
        # Each line has its own seed: all lines together would not fit into the memory of a small machine.
        random = torch.Generator().manual_seed((self.seed * SAMPLES + row) % (1 << 63))
        # From token to token, a step of 1 or 7.
        steps = torch.where(torch.rand(self.context + 1, generator=random) < 0.8, 1, 7)
        first = torch.randint(0, self.vocabulary, (1,), generator=random)
        return (first + steps.cumsum(0)) % self.vocabulary
