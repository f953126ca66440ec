"""The models by their names, each with the data that it is trained on."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor, nn

from dptrace.record import Options
from dptrace.trainers.parts.models import gpt, mlp, resnet

__all__ = ["Data", "model_and_data", "token_options"]


class Data(Protocol):
    """Samples, numbered in the same way on every rank. Images may be taken in any order (Rows), others by slices."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: Any) -> tuple[Tensor, Tensor]: ...


def model_and_data(options: Options) -> tuple[nn.Sequential, Data, Data | None]:
    """Return the model that the options name, its data, and data to validate it on if there are any."""
    if options.model in mlp.WIDTHS:
        return mlp.build(options.model), mlp.Images(options.seed), None
    if options.model == "balanced":
        return mlp.balanced(), mlp.Images(options.seed), None
    if options.model in gpt.SIZES:
        return gpt.build(options.model), gpt.Text(options.model, options.seed), None
    if options.data:
        return resnet.build(), resnet.Cifar10(options.data), resnet.Cifar10(options.data, validation=True)
    return resnet.build(), resnet.SyntheticImages(options.seed), resnet.SyntheticImages(options.seed, validation=True)


def token_options(data: Data) -> dict[str, int]:
    """Return what run.json lists of text under ``options``: the tokens of a sample; nothing for images."""
    return {"tokens_per_sample": data.context} if isinstance(data, gpt.Text) else {}
