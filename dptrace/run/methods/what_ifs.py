"""The methods of a run that replay it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

if TYPE_CHECKING:
    from typing_extensions import Self, Unpack

    from dptrace.analysis.findings.finding import Finding
    from dptrace.api import CriticalPath, ExtraOptions, Replay, WhatIf
    from dptrace.run.cross_rank import CrossRankAnalysis

__all__ = ["WhatIfs"]


class WhatIfs:
    """What a run would take if something were different."""

    @cached_property
    def replay(self) -> Replay:
        """The run prepared for what-ifs: its dependency graph, built once from a second reading of the files."""
        from dptrace.api import replay

        return replay(cast(Any, self))

    def whatif(
        self,
        *,
        compute: float | None = None,
        bandwidth: float | str | None = None,
        kernels: Mapping[str, float] | None = None,
        straggler: Mapping[int, int] | None = None,
        no_straggler: bool = False,
        no_host_delay: bool = False,
        perfect_overlap: bool = False,
        **others: Unpack[ExtraOptions],
    ) -> WhatIf:
        """Predict what a step would take if something were different; see :func:`dptrace.whatif`."""
        from dptrace.api import whatif

        return whatif(
            cast(Any, self),
            compute=compute,
            bandwidth=bandwidth,
            kernels=kernels,
            straggler=straggler,
            no_straggler=no_straggler,
            no_host_delay=no_host_delay,
            perfect_overlap=perfect_overlap,
            **others,
        )

    def with_gains(self) -> Self:
        """Return the run whose findings say what a step would gain without each: a replay for each.

        Additional columns of :meth:`Run.findings` and :meth:`Run.compute_findings`:
            gain_ns (int or None, ns): how much earlier the run would end without the finding, per step.
            gain_low_ns, gain_high_ns (int or None, ns): its range.
            gain_of_median_step_ns (int or None, ns): how much shorter the median step would be.
            gain_next_ns (int or None, ns): what is left of it after the findings above.
            gain_share (float or None): that, as a share of the mean step.
            gain_change (str or None): what is different in the replay; None where no change removes the finding.
            gain_reason (str or None): why there is no number, or why it is far below cost_ns.
            gain_doubts (list): kinds of the doubts, as in :meth:`whatif`.

        A run that can't be replayed has the reason instead of gains. Pages and reports of the run show gains.
        """
        from dptrace.api import with_gains

        return cast("Self", with_gains(cast(Any, self)))

    def gained(self, across: CrossRankAnalysis) -> CrossRankAnalysis:
        """Return the analysis of this run, with gains where the run has them: findings on some steps are new."""
        if not cast(Any, self).gains or all(finding.gain is not None for finding in across.findings):
            return across
        # The findings are about this run, whose own analysis is not there before this returns.
        plain: Any = dataclasses.replace(cast(Any, self), gains=False)
        vars(plain)["cross_rank"] = across
        return replace(across, findings=plain.find_gains(across.findings))

    def find_gains(self, found: Sequence[Finding], *, stragglers: bool = True) -> tuple[Finding, ...]:
        """Return findings of this run with what each would gain; those on stragglers are then made by the replay."""
        from dptrace.api import find_gains

        return find_gains(cast(Any, self), found, stragglers=stragglers)

    def critical_path(self, step: str | int | None = None) -> CriticalPath:
        """Find what sets the length of a step; see :func:`dptrace.critical_path`."""
        from dptrace.api import critical_path

        return critical_path(cast(Any, self), step)
