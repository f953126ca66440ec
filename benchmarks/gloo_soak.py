"""Stop the profiler next to gloo's collectives, hundreds of times, with glibc's checks of the heap.

``python -m benchmarks.gloo_soak [WINDOWS]``, 500 by default; it takes some minutes. Two ranks record windows of two
steps, as dptrace does, and then as torch alone does: DDP, whose last collective has just ended when the profiler stops,
and an all-reduce that goes on meanwhile. Ends with exit code 1 if a window of dptrace's crashes. Linux only.
"""

from __future__ import annotations

import ctypes.util
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from typing import Any

_CHECKS = {"LD_PRELOAD": "libc_malloc_debug.so.0", "MALLOC_CHECK_": "3", "MALLOC_PERTURB_": "165"}
_CASES = ("ddp", "in flight")


def _record(case: str, waits: bool, windows: int) -> None:
    """Record windows in one rank."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.profiler import ProfilerActivity

    from dptrace.record import script_profiler
    from dptrace.record.distributed import RankStore
    from dptrace.record.gloo import GlooThreads
    from dptrace.record.profiler import AlignedProfile
    from dptrace.record.windows import Purpose, Window

    if not waits:
        GlooThreads.wait_until_idle = lambda *_: True  # type: ignore[assignment, method-assign, misc]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    layers = torch.nn.Sequential(*[torch.nn.Linear(32, 32) for _ in range(8)])
    model = DistributedDataParallel(layers, bucket_cap_mb=0.001)
    data, flag, waited = torch.randn(8, 32), torch.ones(1000), 0.0
    guard, store = script_profiler.install(), RankStore("soak")
    for number in range(windows):
        window = Window(Purpose.PROFILED, 0, 1, 3, number)
        with guard.ours():
            profile = AlignedProfile(store, window, activities=[ProfilerActivity.CPU], record_shapes=True)
            profile.start()
        pending: Any = nullcontext
        for _ in range(3):
            model(data).sum().backward()
            if case == "in flight":
                time.sleep(0.01 * dist.get_rank())  # so that the first rank's goes on until the other one begins
                pending = dist.all_reduce(flag.fill_(1), async_op=True).wait
            with guard.ours():
                profile.step()
        began = time.perf_counter()
        with guard.ours():
            profile.wait_for_gloo()
            waited += time.perf_counter() - began
            profile.finish()
        pending()
        if dist.get_rank() == 0:
            print("window", number + 1, flush=True)
    if dist.get_rank() == 0:
        print(f"waited {1e3 * waited / windows:.1f} ms a window", flush=True)
    dist.destroy_process_group()


def _ranks(case: str, waits: bool, windows: int) -> tuple[int, int, str]:
    """Return the exit code, the windows that were recorded, and how long each waited."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    own = ["-m", "benchmarks.gloo_soak", str(windows), case, str(int(waits))]
    done = subprocess.run([*torchrun, *own], env=os.environ | _CHECKS, capture_output=True, text=True, check=False)
    reached = max([int(line.split()[1]) for line in done.stdout.splitlines() if line.startswith("window")], default=0)
    waited = next((line for line in done.stdout.splitlines() if line.startswith("waited")), "")
    return done.returncode, reached, waited


def main() -> int:
    """Print how each case ended, and return the exit code."""
    windows = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    if len(sys.argv) > 2:
        _record(sys.argv[2], sys.argv[3] == "1", windows)
        return 0
    if not ctypes.util.find_library("c") or sys.platform != "linux":
        print("This needs glibc on Linux.")
        return 0
    failed = 0
    for case in _CASES:
        for waits in (True, False):
            code, reached, waited = _ranks(case, waits, windows)
            failed += waits and code != 0
            who = "dptrace" if waits else "torch alone"
            print(
                f"{case:10} {who:12} {'crashed after' if code else 'recorded'} {reached} windows  {waited}", flush=True
            )
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main())
