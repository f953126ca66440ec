"""The mean step of a recording, predicted for other numbers of ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dptrace.commands.planning.recorded_roofline import roofline_point
from dptrace.errors import DptraceError
from dptrace.model.planning.predict_report import GPU_COUNTS
from dptrace.model.planning.recorded import MeasuredStep, measured_scaling, step_bounds
from dptrace.record.options.modes import DATA_PARALLEL

if TYPE_CHECKING:
    from dptrace.run.run import Run

__all__ = ["predict_recording"]

_COMPUTE = ("forward_ns", "backward_ns", "optimizer_ns", "other_ns")

_ASSUMED = (
    "Computation, and what is neither computation nor communication, are those of the recording; communication among N "
    "ranks grows with (N-1)/N, over links like those measured."
)


def predict_recording(run: Run, path: str) -> dict[str, Any]:
    """Predict a recorded data-parallel training on 1 to 1,024 ranks.

    Raises:
        DptraceError: the recording splits layers, stages or experts over its ranks, or has one rank only.
    """
    mode = run.metadata.get("mode")
    if mode is not None and mode not in DATA_PARALLEL:
        raise DptraceError(
            f"{path}: {mode!r} can't be predicted from its recording, only data-parallel trainings can. Describe it: "
            "dptrace predict --params 7e9 --strategy 3d."
        )
    step = _mean_step(run)
    if step.ranks < 2 or not step.communication_s:
        raise DptraceError(f"{path}: shows no communication between ranks; record a run on two ranks or more.")
    bounds = step_bounds(step.compute_s, step.communication_s, step.rest_s)
    return {
        "schema": 1,
        "kind": "predict",
        "recorded": path,
        "gpus": step.ranks,
        "samples": step.samples or None,
        "step_s": step.step_s,
        "compute_s": step.compute_s,
        "communication_s": step.communication_s,
        "exposed_s": step.exposed_s,
        "rest_s": step.rest_s,
        "serial_step_s": bounds.serial_s,
        "ideal_step_s": bounds.overlapped_s,
        "roofline": roofline_point(run, step),
        "scaling": measured_scaling(step, GPU_COUNTS),
        "assumptions": [_ASSUMED, *run.notes],
    }


def _mean_step(run: Run) -> MeasuredStep:
    frame = run.steps()
    ranks = max(run.world_size, int(frame["rank"].nunique()))
    means = frame.mean(numeric_only=True) / 1e9
    waiting = float(frame["exposed_wait_ns"].fillna(0).mean()) / 1e9
    compute = float(sum(means[name] for name in _COMPUTE))
    exposed = float(means["exposed_comm_ns"]) - waiting
    batch = (run.metadata.get("options") or {}).get("batch_size")
    return MeasuredStep(
        ranks=ranks,
        compute_s=compute,
        communication_s=exposed + float(means["overlapped_comm_ns"]),
        exposed_s=exposed,
        rest_s=float(means["wall_ns"]) - compute - exposed,
        samples=float(batch) if isinstance(batch, int) else 0.0,
    )
