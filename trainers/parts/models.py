"""The models by their names, each with the data that it is trained on, and the order in which steps use them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import gelu, relu, scaled_dot_product_attention

from dptrace.errors import UsageError
from dptrace.record import Options
from dptrace.record.options.modes import DECODERS
from dptrace.record.options.modes import WIDTHS as WIDTHS
from dptrace.record.options.validation import SAMPLES
from dptrace.trainers.parts.cifar10 import CLASSES, read_images

# The order of the training data: which samples each step uses, and which of them each rank takes.
#
# A rank's samples are those that torch.utils.data.DistributedSampler(shuffle=True, drop_last=True) gives it: every
# epoch has an order of its own, which follows from the seed, and rank r of n takes each n-th sample of it from the
# r-th on.


Rows = slice | NDArray[np.int64]
"""Samples of a batch: a range of them, or their numbers."""


class Order:
    """The order of *samples* samples in batches of *batch_size*; what does not fill a batch is left out of an epoch.

    Args:
        seed: what the order of each epoch follows from; None to keep the order of the data.
        warmup: steps before the first epoch.

    Raises:
        UsageError: the samples do not fill a batch.
    """

    def __init__(self, samples: int, batch_size: int, seed: int | None, warmup: int = 0) -> None:
        if samples < batch_size:
            raise UsageError(
                f"--batch-size {batch_size}: the data has only {samples:,} samples; give at most that many, or more "
                "--samples."
            )
        self.samples, self.batch_size, self.seed, self.warmup = samples, batch_size, seed, warmup
        self.steps_per_epoch = samples // batch_size
        self._epoch: tuple[int, Any] = (-2, None)

    def rows(self, step: int, index: int, count: int) -> Rows:
        """Return the samples of a step that shard *index* of *count* takes.

        Steps of the warm-up are the last of an epoch before the first, whose order is another.
        """
        epoch, batch = divmod(step - self.warmup, self.steps_per_epoch)
        begin, size = batch * self.batch_size, self.batch_size // count
        if self.seed is None:
            return slice(begin + index * size, begin + (index + 1) * size)
        if self._epoch[0] != epoch:
            # A seed has 64 bits; the epoch before the first counts as the last of them.
            generator = torch.Generator().manual_seed((self.seed + epoch) % (1 << 63))
            self._epoch = epoch, torch.randperm(self.samples, generator=generator).numpy()
        return self._epoch[1][begin + index : begin + self.batch_size : count]


# A plain text decoder: token and position embeddings, blocks of attention and MLP, and a head.
#
# Attention and MLP consist of separately named linear layers, so that tensor parallelism can split them.


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


def build_gpt(name: str) -> nn.Sequential:
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


# Multi-layer perceptrons of four sizes, on synthetic images of 28 × 28 pixels.


def build_mlp(name: str) -> nn.Sequential:
    """Build the model, with parameters from torch's current seed."""
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(WIDTHS[name]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class MlpBlock(nn.Module):
    """A block with the same width in and out; every block, also the first, computes a gradient of its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(relu(self.up(self.norm(x))))


def balanced() -> nn.Sequential:
    """Build 8 equal blocks: pipeline stages take equally long, so that the formula of the bubble can be checked.

    The scores of the classes are the first outputs of the last block; no layer differs from the others.
    """
    return nn.Sequential(*(MlpBlock(WIDTHS["small"][0]) for _ in range(8)))


class Images:
    """Images of noise with random classes, which a network can only memorize."""

    def __init__(self, seed: int) -> None:
        random = torch.Generator().manual_seed(seed)
        self.x = torch.randn(SAMPLES, WIDTHS["small"][0], generator=random)
        self.y = torch.randint(0, 10, (SAMPLES,), generator=random)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, rows: slice) -> tuple[Tensor, Tensor]:
        return self.x[rows], self.y[rows]


# ResNet-18 on CIFAR-10, with images from a local folder or synthetic ones of the same shape.


SHAPE = (3, 32, 32)
_VALIDATION_SAMPLES = 2_048
"""Synthetic images to validate on."""


class BasicBlock(nn.Module):
    """Two convolutions with a residual connection."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.conv2(relu(self.norm1(self.conv1(x)))))
        return relu(y + self.shortcut(x))


def build_resnet() -> nn.Sequential:
    """Build torchvision's ResNet-18 with ten classes, 11.2 million parameters: stem, eight blocks, head."""
    stem = nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, padding=1)
    )
    widths = ((64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2))
    blocks = [BasicBlock(*width) for width in (*widths, (512, 512, 1))]
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES))
    return nn.Sequential(stem, *blocks, head)


class Cifar10:
    """CIFAR-10 from its files, with pixel values from 0 to 1."""

    def __init__(self, folder: str, validation: bool = False) -> None:
        self.images = read_images(folder, validation)

    def __len__(self) -> int:
        return len(self.images.classes)

    def __getitem__(self, rows: Rows) -> tuple[Tensor, Tensor]:
        # Copied: the files' bytes are read-only, which torch warns of.
        pixels, classes = torch.tensor(self.images.pixels[rows]), torch.tensor(self.images.classes[rows])
        return pixels.reshape(-1, *SHAPE).float() / 255, classes.long()


class SyntheticImages:
    """The pattern of a class under noise, so that there is something to learn and to validate."""

    def __init__(self, seed: int, validation: bool = False) -> None:
        random = torch.Generator().manual_seed(seed)
        # Patterns of 8 × 8 patches, so that convolutions have structure to find.
        self.patterns = torch.rand(CLASSES, 3, 8, 8, generator=random).repeat_interleave(4, 2).repeat_interleave(4, 3)
        self.first, self.count, self.seed = (SAMPLES, _VALIDATION_SAMPLES, seed) if validation else (0, SAMPLES, seed)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, rows: Rows) -> tuple[Tensor, Tensor]:
        numbers = range(*rows.indices(len(self))) if isinstance(rows, slice) else rows.tolist()
        images, classes = zip(*(self._image(row) for row in numbers), strict=True)
        return torch.stack(images), torch.tensor(classes)

    def _image(self, row: int) -> tuple[Tensor, int]:
        random = torch.Generator().manual_seed((self.seed * 2 * SAMPLES + self.first + row) % (1 << 63))
        number = int(torch.randint(0, CLASSES, (1,), generator=random))
        return (0.3 * self.patterns[number] + 0.7 * torch.rand(SHAPE, generator=random)), number


class Data(Protocol):
    """Samples, numbered in the same way on every rank. Images may be taken in any order (Rows), others by slices."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any) -> tuple[Tensor, Tensor]: ...


def model_and_data(options: Options) -> tuple[nn.Sequential, Data, Data | None]:
    """Return the model that the options name, its data, and data to validate it on if there are any."""
    if options.model in WIDTHS:
        return build_mlp(options.model), Images(options.seed), None
    if options.model == "balanced":
        return balanced(), Images(options.seed), None
    if options.model in SIZES:
        return build_gpt(options.model), Text(options.model, options.seed), None
    if options.data:
        return build_resnet(), Cifar10(options.data), Cifar10(options.data, validation=True)
    return build_resnet(), SyntheticImages(options.seed), SyntheticImages(options.seed, validation=True)


def token_options(data: Data) -> dict[str, int]:
    """Return what run.json lists of text under ``options``: the tokens of a sample; nothing for images."""
    return {"tokens_per_sample": data.context} if isinstance(data, Text) else {}
