"""Record ten ways to train unchanged, and count what that costs: ``python benchmarks/record_survey.py [NAME...]``.

The scripts are those of ``benchmarks/training_scripts.py``. Each runs once under plain torchrun and once under
``dptrace record``, on two CPU processes; a row says whether the steps and their split are right, and how many CPU
seconds each took.
"""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.training_scripts import FRAMEWORKS, OPTIMIZERS, SCRIPTS  # noqa: E402

STEPS = 5
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
RECORD = ("-m", "dptrace", "record", "--gpus", "2", "--steps", str(STEPS), "-o", "run")
PRODUCTS = ("linear", "addmm", "aten::mm", "conv")
"""Operators that a model's forward pass has, and that neither a loss nor a loader has."""


def cpu_seconds(arguments: tuple[str, ...], folder: Path) -> float:
    """Run Python with these arguments, and return the user and system time of its whole process tree.

    A process that is waited for adds its own time and that of all it waited for, so the tree's is that of the root.
    """
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "", "PYTHONWARNINGS": "ignore"}
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen((sys.executable, *arguments), cwd=folder, env=environment, stdout=log, stderr=log)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or b"trained" not in (folder / "log").read_bytes():
        raise RuntimeError((folder / "log").read_text(errors="replace")[-3000:])
    return usage.ru_utime + usage.ru_stime


def optimizer_steps(trace: Path) -> list[int]:
    """Return how often an optimizer stepped in each recorded step of a rank."""
    with gzip.open(trace) as file:
        events = [event for event in json.load(file)["traceEvents"] if event.get("ph") == "X"]
    annotations = [event for event in events if event["cat"] == "user_annotation"]
    steps = [event for event in annotations if event["name"].startswith("ProfilerStep#")]
    starts = [event["ts"] for event in events if event["name"].startswith("Optimizer.step")]
    return [sum(step["ts"] <= start < step["ts"] + step["dur"] for start in starts) for step in steps]


def forward_products(folder: Path) -> dict[int, list[int]]:
    """Return how many products of matrices the forward of each step has, for each rank.

    They are as many in each step, unless something that is no training step, such as evaluation, counts as forward.
    """
    import dptrace

    kernels = dptrace.open(folder).kernels()
    kernels = kernels[kernels["phase"].eq("forward") & kernels["name"].str.contains("|".join(PRODUCTS))]
    return {int(rank): group.groupby("step").size().tolist() for rank, group in kernels.groupby("rank")}


def survey(name: str, folder: Path) -> dict[str, Any]:
    """Run a script twice, and return its row."""
    (folder / "train.py").write_text(SCRIPTS[name])
    plain = cpu_seconds((*TORCHRUN, "train.py"), folder)
    recorded = cpu_seconds((*RECORD, "train.py"), folder)
    command = (sys.executable, "-m", "dptrace", "analyze", "run", "--json")
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    figures = json.loads(subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True).stdout)
    rows = [step for rank in figures["ranks"] for step in rank["steps"]]
    phases = all(step[key] > 0 for step in rows for key in ("forward_ns", "backward_ns", "optimizer_ns"))
    products = forward_products(folder / "run")
    updates = [optimizer_steps(folder / "run" / f"rank{rank}.pt.trace.json.gz") for rank in range(2)]
    manifest = json.loads((folder / "run" / "run.json").read_text())
    return {
        "name": name,
        "recorded": "/".join(str(rank["recorded_steps"]) for rank in manifest["ranks"]),
        "a pass a step": updates == [[OPTIMIZERS.get(name, 1)] * STEPS] * 2,
        "phases": phases,
        "forward alike": {*products} == {0, 1} and all([counts[0]] * STEPS == counts for counts in products.values()),
        "torchrun": plain,
        "dptrace": recorded,
        "notes": manifest["notes"],
        "products": products,
    }


def main() -> None:
    """Print a row for each script."""
    heading = ("script", "steps of each rank", "a pass is a step", "phases", "forward alike")
    print(f"| {' | '.join(heading)} | CPU s, torchrun | CPU s, recorded |")
    print("|---|---|---|---|---|--:|--:|")
    remarks = []
    for name in sys.argv[1:] or SCRIPTS:
        if name in FRAMEWORKS and not importlib.util.find_spec(FRAMEWORKS[name]):
            remarks.append(f"{name}: not run, needs the package {FRAMEWORKS[name]}")
            continue
        with tempfile.TemporaryDirectory() as folder:
            row = survey(name, Path(folder))
        yes = ["yes" if row[key] else "no" for key in ("a pass a step", "phases", "forward alike")]
        seconds = f"{row['torchrun']:.1f} | {row['dptrace']:.1f}"
        print(f"| {name} | {row['recorded']} | {' | '.join(yes)} | {seconds} |", flush=True)
        remarks += [f"{name}: {note}" for note in row["notes"]]
        if not row["forward alike"]:
            remarks.append(f"{name}: products of matrices in each step's forward: {row['products']}")
    print("\n" + "\n".join(remarks))


if __name__ == "__main__":
    main()
