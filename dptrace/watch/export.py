"""Send figures of a running job to Prometheus or to a collector of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dptrace.errors import MissingExtraError, UsageError
from dptrace.watch.account import Batch
from dptrace.watch.records import STAGES

_HOST, _PORT = "127.0.0.1", 9410
_METRICS = {
    "dptrace_step": ("number of the last step", ()),
    "dptrace_step_seconds": ("median step of the last seconds", ()),
    "dptrace_stage_seconds": ("own time per step, host clock", ("rank", "stage")),
    "dptrace_waiting_seconds": ("time per step in collectives, sends and receives", ("rank",)),
    "dptrace_late_seconds": ("lateness per step for which others waited", ("rank", "stage")),
    "dptrace_memory_bytes": ("allocated on the GPU, or resident", ("rank",)),
    "dptrace_items_per_second": ("samples or tokens of all ranks", ()),
}
"""Gauges: what each says, and its labels."""
Listener = Callable[[Batch], None]


def values(batch: Batch) -> Iterator[tuple[str, tuple[str, ...], float]]:
    """Yield the metrics of some steps: name, labels and value."""
    yield "dptrace_step", (), float(batch.steps[-1])
    length = batch.length.max(0)
    yield "dptrace_step_seconds", (), float(np.median(length)) / 1e9
    yield "dptrace_items_per_second", (), float(batch.items.sum()) / float(length.sum()) * 1e9
    for place, rank in enumerate(batch.ranks):
        name = str(rank)
        yield "dptrace_waiting_seconds", (name,), float(batch.waiting[place].sum(1).mean()) / 1e9
        if batch.memory[place, -1] >= 0:
            yield "dptrace_memory_bytes", (name,), float(batch.memory[place, -1])
        for number, stage in enumerate(STAGES):
            yield "dptrace_stage_seconds", (name, stage), float(batch.own[place, :, number].mean()) / 1e9
            if batch.late is not None:
                yield "dptrace_late_seconds", (name, stage), float(batch.late[place, :, number].mean()) / 1e9


def exporter(where: str) -> Listener:
    """Return what sends the figures of new steps.

    Args:
        where: ``prometheus``, which listens on the loopback interface only, ``prometheus:HOST:PORT``, or ``otlp``,
            whose collector OTEL_EXPORTER_OTLP_ENDPOINT names.

    Raises:
        MissingExtraError: the package that sends them is not installed.
        UsageError: it is neither.
    """
    kind, _, address = where.partition(":")
    if kind == "prometheus":
        return _prometheus(address)
    if where == "otlp":
        return _otlp()
    raise UsageError(f"--export {where}: choose prometheus, prometheus:HOST:PORT or otlp.")


def _prometheus(address: str) -> Listener:
    try:
        import prometheus_client as client
    except ModuleNotFoundError:
        raise MissingExtraError("Exporting to Prometheus needs prometheus_client", "prometheus") from None
    host, _, port = address.rpartition(":") if address else (_HOST, "", str(_PORT))
    if not port.isdecimal() or not host:
        raise UsageError(f"--export prometheus:{address}: give HOST:PORT, such as 0.0.0.0:{_PORT}.")
    registry = client.CollectorRegistry()
    gauges = {name: client.Gauge(name, text, labels, registry=registry) for name, (text, labels) in _METRICS.items()}
    try:
        client.start_http_server(int(port), host, registry)
    except OSError as error:
        raise UsageError(f"--export {host}:{port}: {error.strerror or error}.") from None

    def send(batch: Batch) -> None:
        for name, labels, value in values(batch):
            (gauges[name].labels(*labels) if labels else gauges[name]).set(value)

    return send


def _otlp() -> Listener:
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    except ModuleNotFoundError:
        raise MissingExtraError("Exporting to OpenTelemetry needs opentelemetry-sdk", "opentelemetry") from None
    reader = PeriodicExportingMetricReader(OTLPMetricExporter(), export_interval_millis=10_000)
    meter: Any = MeterProvider([reader]).get_meter("dptrace")
    gauges = {name: meter.create_gauge(name, description=text) for name, (text, _) in _METRICS.items()}

    def send(batch: Batch) -> None:
        for name, labels, value in values(batch):
            gauges[name].set(value, dict(zip(_METRICS[name][1], labels, strict=True)))

    return send
