"""The methods of a run on what its steps compute."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from dptrace.run.utilization import Utilization, Workload

__all__ = ["UtilizationTables"]


class UtilizationTables:
    """Adds :meth:`utilization` to a run."""

    workload: Workload | None

    @cached_property
    def efficiency(self) -> Utilization:
        """FLOP/s, MFU, HFU, samples and tokens per second, over all steps and of each; see :meth:`utilization`."""
        from dptrace.run.utilization import NO_WORKLOAD, utilization_of

        return utilization_of(self, self.workload or NO_WORKLOAD)  # type: ignore[arg-type]

    def efficiency_dict(self) -> dict[str, Any]:
        """Return :attr:`efficiency` as an entry of :meth:`Run.to_dict`; nothing where nothing is known."""
        return {"utilization": self.efficiency.to_dict()} if self.efficiency.known else {}

    def utilization(
        self,
        *,
        parameters: float | None = None,
        tokens: float | None = None,
        samples: float | None = None,
        peak_tflops: float | None = None,
    ) -> pd.DataFrame:
        """Return what each step computes, and the share of its GPU's peak: a row per rank, device and step.

        What is not given comes from run.json, the peak from the table of GPUs.

        Args:
            parameters: of the whole model.
            tokens: of one step, over all ranks.
            samples: of one step, over all ranks.
            peak_tflops: dense peak of one GPU, in TFLOP/s.

        Columns:
            rank, device (int): as in :meth:`steps`.
            step (str): name of the step.
            wall_ns (int, ns): length of the step.
            model_flops, hardware_flops (float): FLOPs of the model, and with recomputation; NaN where unknown.
            tflops (float, TFLOP/s): model_flops over wall_ns.
            mfu, hfu (float): model and hardware FLOPs utilization, from 0 to 1; NaN without a known peak.
            samples_per_s, tokens_per_s (float, 1/s): of all ranks together; NaN where the batch is unknown.
        """
        from dptrace.run.tables import frame
        from dptrace.run.utilization import COLUMNS, Workload, utilization_of

        given = Workload(parameters, tokens, samples, peak_tflops)
        found = utilization_of(self, given)  # type: ignore[arg-type]
        table = frame((step.to_dict() for step in found.steps), COLUMNS)
        return table.astype(dict.fromkeys(COLUMNS[4:], float))
