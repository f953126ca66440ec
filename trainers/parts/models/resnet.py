"""ResNet-18 on CIFAR-10, with images from a local folder or synthetic ones of the same shape."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from dptrace.record.cifar10 import CLASSES, read_images
from dptrace.record.options.validation import SAMPLES
from dptrace.trainers.data.order import Rows

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


def build() -> nn.Sequential:
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
