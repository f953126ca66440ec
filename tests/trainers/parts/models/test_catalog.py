"""The models by their names."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")


def test_a_decoder_comes_with_text_whose_samples_have_several_tokens() -> None:
    """run.json learns from the data how many tokens a sample has; a decoder has no validation data."""
    from dptrace.record import parse_options
    from dptrace.trainers.parts.models.catalog import model_and_data, token_options

    _, data, validation = model_and_data(parse_options("", "single", ["--model", "gpt-tiny"]))

    assert validation is None
    assert {"tokens_per_sample": data[0:1][0].shape[1]} == token_options(data)
