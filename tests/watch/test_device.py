"""Device time of the stages, by events that are asked for later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dptrace.watch.device import DeviceStages
from dptrace.watch.records import BACKWARD, DATA, DEVICE, FORWARD, OTHER, STAGES, read
from tests.support.watch_records import summarized


class Device:
    """A device that is behind the host: it reaches an event *lag* later, and knows only its own time in ms."""

    def __init__(self) -> None:
        self.host = self.reached = 0.0
        self.made = 0

    def event(self) -> Any:
        """Make an event."""
        device = self
        device.made += 1

        class Event:
            at = 0.0

            def record(self) -> None:
                self.at = device.host

            def query(self) -> bool:
                return device.reached >= self.at

            def elapsed_time(self, other: Event) -> float:
                return other.at - self.at

        return Event()


def make_step(stages: DeviceStages, device: Device, number: int) -> None:
    """Make a step of 2 ms data, 5 ms forward and 9 ms backward."""
    for stage, ms in ((DATA, 2.0), (FORWARD, 5.0), (BACKWARD, 9.0)):
        if stages.measuring:
            stages.border(OTHER)
        device.host += ms
        if stages.measuring:
            stages.border(stage)
    device.host += 1.0
    stages.next_step(number + 1)


def test_a_tenth_of_the_steps_is_timed_once_the_device_has_ended_them() -> None:
    """Nothing is known before; then each stage has its time, and events are used again."""
    device = Device()
    stages = DeviceStages(device.event, lambda: False)
    for number in range(25):
        make_step(stages, device, number)
    early = list(stages.done())
    device.reached = device.host
    late = list(stages.done())
    made = device.made
    for number in range(25, 300):
        make_step(stages, device, number)
        device.reached = device.host
        late += stages.done()

    assert [] == early
    assert [*range(10, 300, 10)] == [step for step, _ in late]
    assert {(2_000_000, 5_000_000, 9_000_000, 0, 1_000_000)} == {tuple(spent) for _, spent in late}
    assert made == device.made


def test_a_device_that_never_ends_a_step_costs_no_more_memory() -> None:
    """Steps that wait for the device are few, whatever it does."""
    device = Device()
    stages = DeviceStages(device.event, lambda: False)
    for number in range(2000):
        make_step(stages, device, number)

    assert device.made < 100
    assert [] == list(stages.done())


def test_no_event_is_recorded_while_a_graph_is_captured() -> None:
    """Such a step has no device time; the next one has."""
    device, capturing = Device(), [False]
    stages = DeviceStages(device.event, lambda: capturing[0])
    for number in range(30):
        capturing[0] = number == 10
        made = device.made
        make_step(stages, device, number)
        assert not capturing[0] or made == device.made
    device.reached = device.host

    assert [20] == [step for step, _ in stages.done()]


def test_the_summary_has_device_time_beside_host_time(tmp_path: Path) -> None:
    """Records of kind 6 in the file of calls become the median rank's time per stage; without any, it is unknown."""
    from dptrace.watch.records import CALL
    from tests.support.watch_records import Job

    known, unknown = (Job("ddp", 2).run(60) for _ in range(2))
    for rank in known.ranks:
        for step in (20, 30):
            rank.calls += CALL.pack(DEVICE, OTHER, 0, step, 0, -1, 0, 0, 0, 1000, step * 1000, 3000, 4000, 5000)

    assert 25_000 == summarized(known.write(tmp_path / "known"))["stages"]["forward"]["device_ns"]
    assert summarized(unknown.write(tmp_path / "unknown"))["stages"]["forward"]["device_ns"] is None


def test_a_gpu_times_stages_without_being_waited_for(tmp_path: Path) -> None:
    """The forward of large products is as long on the device as between two events that are waited for."""
    torch = pytest.importorskip("torch", reason="watching needs torch")
    if not torch.cuda.is_available():
        pytest.skip("this machine has no GPU")
    from dptrace.watch.session import Settings, Watch

    watch = Watch(Settings(str(tmp_path / "w"), follows=False)).install()
    try:
        model = torch.nn.Linear(4096, 4096).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
        x = torch.ones(8192, 4096, device="cuda")
        truth = []
        watch._memory_now()
        for _ in range(60):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            y = model(x)
            end.record()
            truth.append((begin, end))
            y.sum().backward()
            optimizer.step()
        torch.cuda.synchronize()
        watch.write_device()
    finally:
        watch.close(None)
    calls = read(tmp_path / "w" / "rank0000.calls")
    timed = calls[calls["kind"] == DEVICE]
    expected = sorted(begin.elapsed_time(end) for begin, end in truth)[30]

    assert len(timed) >= 4
    assert expected == pytest.approx(sorted(timed["own_ns"][:, FORWARD])[len(timed) // 2] / 1e6, rel=0.2)
    assert len(STAGES) == timed["own_ns"].shape[1]
