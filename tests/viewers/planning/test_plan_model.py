"""The page computes the step that Python computes."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from dptrace.errors import UsageError
from dptrace.model.planning.describe import Description
from dptrace.model.planning.predict_report import live_figures
from dptrace.model.training.plan import Plan
from dptrace.model.training.step import predict_step
from tests.support.paths import ROOT

SCRIPT = ROOT / "viewers" / "planning" / "static" / "plan_model.js"
STRATEGIES = ("ddp", "zero1", "zero2", "fsdp", "hsdp", "tp", "pp", "3d", "ep")


def described(strategy: str, gpus: int) -> Description:
    if strategy == "ep":
        return Description(layers=32, hidden=4096, gpus=gpus, strategy="ep", ep=4, experts=8)
    tensor, stages = (2 if strategy in ("tp", "3d") else None), (4 if strategy in ("pp", "3d") else None)
    return Description(params=7e9, layers=32, hidden=4096, gpus=gpus, strategy=strategy, tp=tensor, pp=stages)


def plan_of(strategy: str, gpus: int, micro_batches: int) -> Plan:
    one = described(strategy, gpus)
    layout = one.layout(strategy)
    return one.plan(layout, layout.data * 2 * micro_batches, 2, "selective")


def faster(plan: Plan, share: float, within: float, between: float) -> Plan:
    near, far = plan.network.within, plan.network.between
    links = replace(plan.network, within=replace(near, bytes_per_s=within), between=replace(far, bytes_per_s=between))
    return replace(plan, share=share, network=links)


def cases() -> list[tuple[str, Plan, dict[str, Any], Plan]]:
    """Return for each strategy a plan, what the sliders are moved to, and the plan that Python computes then."""
    found = []
    for strategy in STRATEGIES:
        for gpus, micro_batches, share, within, between in ((128, 16, 0.4, 2e11, 1e10), (1024, 2, 0.7, 4e11, 1e9)):
            try:
                base, moved = plan_of(strategy, 64, 8), plan_of(strategy, gpus, micro_batches)
            except UsageError as error:
                pytest.fail(str(error))
            now = {"data": moved.layout.data, "microBatches": micro_batches, "share": share, "within": within}
            now |= {"between": between, "overlap": True}
            found.append((strategy, base, now, faster(moved, share, within, between)))
    return found


@pytest.mark.skipif(shutil.which("node") is None, reason="needs node")
def test_the_pages_step_is_pythons(tmp_path: Path) -> None:
    """For every strategy, with other GPUs, micro-batches, rates and links than the page begins with."""
    given = [{"plan": live_figures(base), "now": now} for _, base, now, _ in cases()]
    (tmp_path / "cases.json").write_text(json.dumps(given))
    code = (
        f'import {{ step }} from "{SCRIPT.as_uri()}"; import {{ readFileSync }} from "node:fs";'
        'const cases = JSON.parse(readFileSync("cases.json")); '
        "console.log(JSON.stringify(cases.map(({ plan, now }) => step(plan, now))));"
    )
    out = subprocess.run(
        ["node", "--input-type=module", "-e", code], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    for (strategy, _, _, moved), found in zip(cases(), json.loads(out.stdout), strict=True):
        step = predict_step(moved)
        expected = [step.compute_s, step.bubble_s, step.optimizer_s, step.communication_s, step.exposed_s, step.mfu]
        names = ("compute", "bubble", "optimizer", "communication", "exposed", "mfu")
        assert [found[name] for name in names] == pytest.approx(expected, rel=1e-9), strategy
