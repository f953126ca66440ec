"""DDP with its settings: broadcast buffers, and compressed gradients that train nearly as well."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")


from dptrace.record import parse_options  # noqa: E402
from dptrace.trainers.parts.replicated import replicated  # noqa: E402

pytestmark = pytest.mark.usefixtures("alone")


def wrapped(model: Any, *arguments: str, mode: str = "ddp") -> Any:
    return replicated(model, parse_options("", mode, ["--model", "small", *arguments]))


def broadcasts(model: Any, forwards: int, skip: bool = False) -> int:
    """Count the broadcasts in a number of forwards, all but the last in no_sync() if *skip*."""
    from contextlib import nullcontext

    def train(steps: int) -> None:
        for number in range(1, steps + 1):
            with model.no_sync() if skip and number < steps else nullcontext():
                model(torch.ones(2, 3, 4, 4)).sum().backward()

    for _ in range(2):
        train(1)  # before the second, DDP rebuilds its buckets, and broadcasts which are in which
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        train(forwards)
    return sum(event.name == "gloo:broadcast" for event in profile.events())


@pytest.mark.heavy
def test_buffers_are_broadcast_in_each_forward_unless_switched_off() -> None:
    """Of batch norm its two averages as one message, and its counter; once in a step that accumulates."""
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 2, 3), torch.nn.BatchNorm2d(2))

    assert 2 * 3 == broadcasts(wrapped(model), 3)
    assert 0 == broadcasts(wrapped(model, "--no-broadcast-buffers"), 3)
    assert 2 == broadcasts(wrapped(model, mode="accumulate"), 3, skip=True)


_COMPRESSIONS = {
    "none": (),
    "fp16": (),
    "int8": (),
    "int4": (),
    "qsgd": ("--qsgd-levels", "1"),
    "topk": ("--topk-ratio", "0.1"),
    "randomk": ("--randomk-ratio", "0.3"),
    "threshold": ("--threshold", "0.05"),
}


def trained_loss(how: str, steps: int) -> float:
    """Return the loss of a least-squares fit of 60 numbers after some steps; it begins near 20."""
    torch.manual_seed(5)
    model = torch.nn.Linear(20, 3)
    x, truth = torch.randn(64, 20), torch.randn(20, 3)
    ddp = wrapped(model, "--compress", how, *_COMPRESSIONS[how])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    loss = torch.zeros(())
    for _ in range(steps):
        loss = (ddp(x) - x @ truth).square().sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return float(loss.detach())


@pytest.mark.heavy
@pytest.mark.parametrize("how", _COMPRESSIONS)
def test_training_converges_with_each_compression(how: str) -> None:
    """With 2 bits for a number or a tenth of the numbers the loss falls to a thousandth, too: errors are made up."""
    assert 10 < trained_loss(how, 1)
    assert trained_loss(how, 200) < 0.02


@pytest.mark.heavy
def test_the_default_of_a_compression_is_written_down() -> None:
    """run.json lists the share, limit or number of levels that was used."""
    used = {}
    for how in ("topk", "randomk", "threshold", "qsgd"):
        options = parse_options("", "ddp", ["--model", "small", "--compress", how])
        replicated(torch.nn.Linear(2, 2), options)
        names = ("topk_ratio", "randomk_ratio", "threshold", "qsgd_levels", "powersgd_rank")
        used[how] = {name: value for name in names if (value := options.run_options[name]) is not None}

    expected = {"topk_ratio": 0.01}, {"randomk_ratio": 0.01}, {"threshold": 0.001}, {"qsgd_levels": 7}
    assert dict(zip(used, expected, strict=True)) == used
