"""The methods of a run that replay it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from dptrace.api import CriticalPath, Others, Replay, WhatIf

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
        **others: Unpack[Others],
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

    def critical_path(self, step: str | None = None) -> CriticalPath:
        """Find what sets the length of a step; see :func:`dptrace.critical_path`."""
        from dptrace.api import critical_path

        return critical_path(cast(Any, self), step)
