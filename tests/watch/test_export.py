"""Figures of a running job in Prometheus, and what the callbacks of frameworks begin and end."""

from __future__ import annotations

import socket
import sys
import types
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from dptrace.errors import DptraceError, MissingExtraError, UsageError
from dptrace.watch.export import exporter
from dptrace.watch.follow import Follower
from tests.support.watch_records import Job, Plant


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def test_prometheus_reads_the_last_steps(tmp_path: Path) -> None:
    """Each rank's stages and lateness, in seconds, from the address that was asked for."""
    pytest.importorskip("prometheus_client", reason="needs the extra prometheus")
    port = free_port()
    follower = Follower(Job("ddp", 3, [Plant(2, "forward", 12.0)]).run(40).write(tmp_path))
    follower.listeners.append(exporter(f"prometheus:127.0.0.1:{port}"))
    follower.poll()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        lines = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if not line.startswith("#"))

    assert 39 == float(lines["dptrace_step"])
    assert 0.012 == pytest.approx(float(lines['dptrace_late_seconds{rank="2",stage="forward"}']), rel=0.1)
    assert 0.009 == pytest.approx(float(lines['dptrace_stage_seconds{rank="0",stage="forward"}']), rel=0.1)


@pytest.mark.parametrize("where", ["graphite", "prometheus:9000", "prometheus:127.0.0.1:http"])
def test_a_wrong_place_is_refused(where: str) -> None:
    """With what to write instead."""
    pytest.importorskip("prometheus_client", reason="needs the extra prometheus")
    with pytest.raises(UsageError):
        exporter(where)


@pytest.mark.parametrize(("where", "module"), [("prometheus", "prometheus_client"), ("otlp", "opentelemetry")])
def test_a_missing_package_is_named_with_its_command(where: str, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an extra of dptrace."""
    for name in [module, *(known for known in sys.modules if known.startswith(f"{module}."))]:
        monkeypatch.setitem(sys.modules, name, None)

    with pytest.raises(MissingExtraError, match="Install it with: "):
        exporter(where)


class Parent:
    """In place of the frameworks' own callback class."""


@pytest.mark.heavy
@pytest.mark.parametrize("framework", ["transformers", "lightning.pytorch"])
def test_a_callback_watches_from_the_beginning_to_the_end(
    framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a callback of the framework; each step of the optimizer in between is a record."""
    torch = pytest.importorskip("torch", reason="watching needs torch")
    from dptrace.watch import LightningCallback, TrainerCallback
    from dptrace.watch.records import read

    fake: Any = types.ModuleType(framework)
    fake.TrainerCallback = fake.Callback = Parent
    monkeypatch.setitem(sys.modules, framework, fake)
    make = TrainerCallback if framework == "transformers" else LightningCallback
    callback = make(tmp_path / "w", quiet=True, captures=0)
    begin = callback.on_train_begin if framework == "transformers" else callback.on_train_start
    parameter = torch.ones(2, requires_grad=True)
    optimizer = torch.optim.SGD([parameter], lr=0.1)

    begin(None, None)
    for _ in range(5):
        parameter.sum().backward()
        optimizer.step()
    callback.on_train_end(None, None)

    assert isinstance(callback, Parent)
    assert [1, 2, 3, 4] == read(tmp_path / "w" / "rank0000.steps")["step"].tolist()
    assert (tmp_path / "w" / "summary.json").exists()


def test_without_a_framework_the_advice_is_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package that is missing."""
    pytest.importorskip("torch", reason="watching needs torch")
    from dptrace.watch import TrainerCallback

    monkeypatch.setitem(sys.modules, "transformers", None)

    with pytest.raises(DptraceError, match="pip install transformers"):
        TrainerCallback()
