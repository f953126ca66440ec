"""Peak, gradients and optimizer state against torch's own memory profile of the same training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dptrace.analysis.memory.usage import MemoryKind
from tests.support.forking import run_python
from tests.support.memory_files import only_device

pytestmark = [pytest.mark.spawn, pytest.mark.heavy]

SCRIPT = """
import json, sys
import torch
from torch.profiler import ProfilerActivity, profile
from torch.profiler._memory_profiler import MemoryProfileTimeline

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters())
settings = dict(profile_memory=True, record_shapes=True, with_stack=True)
with profile(activities=[ProfilerActivity.CPU], **settings) as profiler:
    for _ in range(3):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(torch.randn(64, 16)), torch.randint(0, 4, (64,)))
        loss.backward()
        optimizer.step()
        profiler.step()
profiler.export_chrome_trace(sys.argv[1])
memory = profiler._memory_profile()
_, sizes = MemoryProfileTimeline(memory)._coalesce_timeline("cpu")
found = {"peak": max(map(sum, sizes)), "PREEXISTING": 0, "GRADIENT": [0, 0], "OPTIMIZER_STATE": [0, 0]}
for _, action, (key, version), size in memory.timeline:
    category = memory._categories.get(key, version)
    if action.name == "PREEXISTING":
        found["PREEXISTING"] += size
    elif action.name == "CREATE" and category is not None and category.name in found:
        found[category.name][0] += size
        found[category.name][1] += 1
print(json.dumps(found))
"""


def test_peak_gradients_and_optimizer_state_equal_torchs(tmp_path: Path) -> None:
    """Three steps with AdamW on a CPU. Torch counts what was there before as well, which a trace does not know."""
    (tmp_path / "train.py").write_text(SCRIPT)
    done = run_python("train.py", "trace.json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    torch = json.loads(done.stdout.splitlines()[-1])
    device = only_device(tmp_path / "trace.json")

    assert torch["peak"] == int(device.events.allocated.max()) + torch["PREEXISTING"]
    for kind in (MemoryKind.GRADIENT, MemoryKind.OPTIMIZER_STATE):
        own = device.blocks.bytes[device.kind == kind]
        assert torch[kind.name] == [int(own.sum()), len(own)]
        assert len(own) == 12
