"""Turn torch's profiler on and off for one window of steps at a time, next to a profiler of the script itself."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity

from dptrace.record.profiler.aligned_profile import BARRIER_TIMEOUT, AlignedProfile
from dptrace.record.profiler.marks import ModuleMarks
from dptrace.record.ranks.accelerator import accelerator_of, used_accelerator
from dptrace.record.ranks.distributed import RankStore
from dptrace.record.run_folder.messages import LauncherSettings
from dptrace.record.script_profiler import guard as profiler_guard
from dptrace.record.script_profiler.start_agreement import StartAgreement
from dptrace.record.windows.plan import Window, steps_in

__all__ = ["WindowProfiler"]

profiler_guard.install()  # when imported, since a profiler that is prepared before the loop must be seen too


class WindowProfiler:
    """The profiler of a recording, which is on in some windows of steps.

    Args:
        log: a file for what torch prints about the profiler.
        make_way: called when the script starts its own profiler while this one is on; turns this one off.
    """

    def __init__(
        self, rank_store: RankStore, settings: LauncherSettings, make_way: Callable[[], None], log: Path | None
    ) -> None:
        self._rank_store, self._settings, self._log = rank_store, settings, log
        self._guard = profiler_guard.install()
        self._guard.sentences()  # of earlier recordings
        self._guard.on_foreign_start = make_way
        self._agreement = StartAgreement(rank_store, self._guard)
        self._profile: AlignedProfile | None = None
        self.modules = ModuleMarks()
        self._step_ends: deque[float] = deque(maxlen=5)

    @property
    def is_on(self) -> bool:
        """Whether the profiler is prepared or recording."""
        return self._profile is not None

    def blocked(self, step: int, warmup_lost: bool = False) -> bool:
        """Return whether the profiler cannot be on in this step, on this rank or another that profiles itself.

        Args:
            warmup_lost: whether the script's profiler has ended this rank's warm-up.
        """
        return self._agreement.blocked(warmup_lost or self._guard.foreign_busy(), step)

    def start(self, window: Window, device: torch.device) -> None:
        """Prepare the profiler for a window that begins with the next step."""
        profile = AlignedProfile(
            self._rank_store,
            window,
            choose_end=lambda: self._choose_end(window),
            without_operators=self._settings.light and accelerator_of(device) is not None,
            device=device,
            log=self._log,
            activities=_activities(device),
            record_shapes=not self._settings.light and (self._settings.shapes or _needs_shapes(device)),
            profile_memory=self._settings.memory,
        )
        if self._settings.modules:
            self.modules.start()  # in the warm-up, since a compiled model is compiled again for the hooks
        with self._guard.ours():
            profile.start()
        self._profile = profile

    def step(self) -> None:
        """End a step, whether the profiler is on or off."""
        self._step_ends.append(time.perf_counter())
        self._agreement.announce()
        if self._profile is not None:
            with self._guard.ours():
                self._profile.step()

    def finish(self) -> AlignedProfile | None:
        """Turn the profiler off, and return the profile, which holds the trace; None if it was not on."""
        profile, self._profile = self._profile, None
        self.modules.stop()
        if profile is not None:
            with self._guard.ours():
                profile.finish()
        return profile

    def notes(self) -> list[str]:
        """Return what happened between this profiler and the script's since the last call."""
        return self._guard.sentences()

    def _choose_end(self, window: Window) -> None:
        """With --duration, turn seconds into steps: rank 0 chooses, so that all ranks record the same steps."""
        if self._settings.duration_s is None:
            return
        ends = list(self._step_ends)
        step_s = median(after - before for before, after in pairwise(ends)) if ends[1:] else 0.0
        steps = steps_in(self._settings.duration_s, step_s)
        window.end = window.start + self._rank_store.agree(f"steps{window.number}", steps, BARRIER_TIMEOUT)


def _activities(device: torch.device) -> list[ProfilerActivity]:
    # Parameters may be on the CPU although a GPU computes: offloading.
    accelerator = accelerator_of(device) or used_accelerator()
    return [ProfilerActivity.CPU] + ([] if accelerator is None else [accelerator.activity])


def _needs_shapes(device: torch.device) -> bool:
    """Return whether message sizes must be computed from shapes: gloo's events contain no size, NCCL's do.

    Recording shapes makes every operator slower, which matters if the GPU waits for the host.
    """
    accelerator = accelerator_of(device) or used_accelerator()
    if accelerator is None:
        return True
    joined = dist.is_available() and dist.is_initialized()
    return joined and accelerator.backend_config not in dist.get_backend_config()
