"""The latency of inference."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")


class Slow(torch.nn.Module):  # type: ignore[name-defined,misc]
    """A model that takes a second for a batch and one for each image, ten times that in its first runs."""

    def __init__(self) -> None:
        super().__init__()
        self.now, self.runs = 0.0, 0
        self.batches: list[Any] = []

    def forward(self, x: Any) -> Any:
        self.runs += 1
        self.batches.append((self.training, tuple(x[:, 0].tolist())))
        self.now += (1 + len(x)) * (10 if len(self.batches) <= 3 else 1)
        return x


def test_an_image_takes_its_share_of_its_batch() -> None:
    """Without the warm-up, in evaluation; few images are repeated to fill a batch."""
    from dptrace.trainers.evaluation.latency import inference_latency

    model = Slow()
    one, three = inference_latency(model, torch.tensor([[1.0], [2.0]]), [1, 3], lambda: model.now)

    assert (1, 10, 2.0, 2.0, 2.0, 0.5) == tuple(
        one[name] for name in ("batch_size", "runs", "p50_s", "p95_s", "sample_p50_s", "samples_per_s")
    )
    assert (3, 4.0, pytest.approx(4 / 3), pytest.approx(4 / 3)) == tuple(
        three[name] for name in ("batch_size", "p50_s", "sample_p50_s", "sample_p95_s")
    )
    assert {(False, (1.0,)), (False, (1.0, 2.0, 1.0))} == set(model.batches)
    assert model.training
    assert torch.get_num_threads() == one["threads"]
