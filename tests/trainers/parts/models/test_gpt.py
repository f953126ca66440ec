"""The decoder and its synthetic text."""

from __future__ import annotations

import pytest

from dptrace.record.options.models import MODELS

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(("name", "parameters"), [("gpt-tiny", 932_608), ("gpt-small", 135_780_864)])
def test_the_sizes_are_those_that_help_shows(name: str, parameters: int) -> None:
    """The models have 0.9 and 135.8 million parameters, as the help says."""
    from dptrace.trainers.parts.models import gpt

    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in gpt.build(name).parameters())

    assert parameters == count
    assert f"{round(count / 1e6, 1)} million" in MODELS[name].description


def test_no_prediction_sees_what_comes_after() -> None:
    """Changing a token changes no score before it, and some after it."""
    from dptrace.trainers.parts.models import gpt

    torch.manual_seed(0)
    model = gpt.build("gpt-tiny")
    x, _ = gpt.Text("gpt-tiny", 1)[0:1]
    other = x.clone()
    other[0, 20] = (other[0, 20] + 1) % 512
    with torch.no_grad():
        a, b = model(x), model(other)

    assert torch.allclose(a[0, :20], b[0, :20], atol=1e-6)
    assert not torch.allclose(a[0, 20:], b[0, 20:], atol=1e-3)


def test_text_is_the_same_on_every_rank_and_can_be_learned() -> None:
    """The target is the text shifted by one token, and four of five tokens follow by a step of one."""
    from dptrace.trainers.parts.models import gpt

    text = gpt.Text("gpt-tiny", 5)
    x, y = text[0:64]

    assert (64, 64) == tuple(x.shape)
    assert torch.equal(x[:, 1:], y[:, :-1])
    assert torch.equal(text[7:9][0][0], x[7])
    assert pytest.approx(0.8, abs=0.03) == float(((y - x) % 512 == 1).float().mean())
