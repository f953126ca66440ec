"""The kernels of torch.compile belong to the lines of the model that they compute."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import dptrace
from dptrace.errors import TraceError, UsageError
from dptrace.readers.provenance import read_provenance
from tests.support.kineto_files import KinetoFile
from tests.support.processes import finished

FORWARD, BACKWARD = "f5abcdefgh2345677654321hgfedcba", "b5abcdefgh2345677654321hgfedcba"
GRAPH = """class GraphModule(torch.nn.Module):
    def forward(self, L_self_modules_up_parameters_weight_: "f32[8, 8]", L_x_: "f32[2, 8]"):
        l_self_modules_layers_modules_3_modules_up_parameters_weight_ = L_self_modules_up_parameters_weight_
        # File: /home/me/model.py:7 in forward, code: h = self.up(x)
        h: "f32[2, 8]" = torch._C._nn.linear(l_x_, l_self_modules_layers_modules_3_modules_up_parameters_weight_, None)
        # File: /home/me/model.py:8 in forward, code: h = gelu(h)
        gelu: "f32[2, 8]" = torch._C._nn.gelu(h);  h = None
"""
CODE = """# Topologically Sorted Source Nodes: [gelu], Original ATen: [aten.gelu]
# Source node to ATen node mapping:
#   gelu => mul
triton_poi_fused_gelu_0 = async_compile.triton('triton_poi_fused_gelu_0', '''
def triton_poi_fused_gelu_0(in_ptr0, out_ptr0):
''')
def call(args):
        buf0 = empty_strided_cuda((2, 8), (8, 1), torch.float32)
        # Topologically Sorted Source Nodes: [h], Original ATen: [aten.mm]
        extern_kernels.mm(primals_2, primals_1, out=buf0)
        # Topologically Sorted Source Nodes: [gelu], Original ATen: [aten.gelu]
        stream0 = get_raw_stream(0)
        triton_poi_fused_gelu_0.run(buf0, buf1, 16, stream=stream0)
"""


def _stack(line: int, code: str) -> str:
    torch = (
        '  File "/venv/site-packages/torch/nn/modules/linear.py", line 134, in forward\n    return F.linear(input)\n'
    )
    return f'  File "/home/me/model.py", line {line}, in forward\n    {code}\n           ^^^^\n{torch}'


def _log(path: Path, *records: tuple[dict[str, Any], str]) -> Path:
    path.mkdir(exist_ok=True)
    heads = (f"V1126 22:36:38.070000 14347 torch/_inductor/x.py:1] {json.dumps(head)}\n" for head, _ in records)
    payloads = ("".join(f"\t{line}\n" for line in payload.splitlines()) for _, payload in records)
    log = "".join(head + payload for head, payload in zip(heads, payloads, strict=True))
    (path / "dedicated_log_torch_trace_rank_0_x.log").write_text(log)
    return path


def _artifact(name: str, payload: object) -> tuple[dict[str, Any], str]:
    return {"artifact": {"name": name, "encoding": "json"}, "has_payload": "0"}, json.dumps(payload)


STACKS = {"extern_kernels.mm:1": [_stack(8, "h = gelu(h)")], "extern_kernels.mm:3": [_stack(7, "h = self.up(x)")]}


@pytest.fixture
def provenance(tmp_path: Path) -> Path:
    """Forward has comments alone, as without INDUCTOR_PROVENANCE; backward calls one kernel twice."""
    return _log(
        tmp_path / "compiled",
        ({"dynamo_output_graph": {}}, GRAPH),
        ({"inductor_output_code": {}}, CODE),
        _artifact("fx_graph_cache_miss", {"key": FORWARD}),
        _artifact("inductor_provenance_tracking_kernel_stack_traces", STACKS),
        _artifact("fx_graph_cache_hit", {"key": BACKWARD}),
    )


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """Two steps: in forward a product and a Triton kernel, in backward two products; then an eager kernel."""
    file = KinetoFile()
    for step in range(2):
        at = 300 * step
        file.label(f"ProfilerStep#{step}", at, at + 280)
        file.op(f"## Call CompiledFxGraph {FORWARD} ##", at + 1, at + 60)
        file.op("aten::mm", at + 5, at + 10).kernel("nvjet_tst_64x64", at + 20, at + 30, at + 6)
        file.op("triton_poi_fused_gelu_0", at + 15, at + 18).kernel(
            "triton_poi_fused_gelu_0", at + 30, at + 34, at + 16
        )
        file.op(f"## Call CompiledFxGraph {BACKWARD} ##", at + 70, at + 100)
        file.op("aten::mm", at + 71, at + 80).kernel("nvjet_tst_64x64", at + 110, at + 113, at + 72)
        file.op("aten::mm", at + 81, at + 90).kernel("nvjet_tst_64x64", at + 120, at + 125, at + 82)
        file.op("aten::add_", at + 150, at + 160).kernel("add_kernel", at + 170, at + 177, at + 151)
    return file.write(tmp_path / "rank0.json")


def test_each_call_of_a_kernel_has_its_own_line(trace: Path, provenance: Path) -> None:
    """From comments alone, or from stacks; a backward line names the module that it runs for."""
    rows = dptrace.open(trace, cache=False).kernel_summary("source", provenance=provenance)

    columns = ["source", "code", "fx_nodes", "module", "count", "total_ns"]
    assert {tuple(row) for row in rows[columns].itertuples(index=False)} == {
        ("/home/me/model.py:7", "h = self.up(x)", "h", "layers.3.up", 2, 20_000),
        ("/home/me/model.py:8", "h = gelu(h)", "gelu", "", 2, 8_000),
        ("/home/me/model.py:8", "h = gelu(h)", "", "", 2, 6_000),
        ("/home/me/model.py:7", "h = self.up(x)", "", "layers.3.up", 2, 10_000),
        ("(not compiled)", "", "", "", 2, 14_000),
    }


def test_a_model_compiled_for_a_gpu_is_mapped_to_its_lines(tmp_path: Path) -> None:
    """What inductor and Triton wrote on an H200: nearly all time has a line, a product its own."""
    shutil.unpack_archive(Path(__file__).with_name("compiled_h200.zip"), tmp_path)
    run = dptrace.open(tmp_path / "run", cache=False)
    rows = run.kernel_summary("source", provenance=tmp_path / "torch_trace")
    compiled = rows[rows["source"] != "(not compiled)"]
    named = compiled[compiled["source"].str.contains("gpt.py")]
    head = named[named["code"].str.startswith("return s.head(h)") & (named["main_phase"] == "forward")]

    assert named["total_ns"].sum() > 0.94 * compiled["total_ns"].sum()
    assert rows["total_ns"].sum() == run.kernel_summary("kernel")["total_ns"].sum()
    # The head has a vocabulary of 8,192: its product is the largest of forward.
    assert head["total_ns"].max() == named[named["main_phase"] == "forward"]["total_ns"].max()


def test_a_model_compiled_for_a_cpu_is_mapped_to_its_lines(tmp_path: Path) -> None:
    """The call of a graph is an annotation there, around operators; its first argument is not called self."""
    shutil.unpack_archive(Path(__file__).with_name("compiled_cpu.zip"), tmp_path)
    log = next((tmp_path / "torch_trace").iterdir())
    packed = log.with_name(f"{log.name}.gz")
    packed.write_bytes(gzip.compress(log.read_bytes()))
    log.unlink()
    run = dptrace.open(tmp_path / "run", cache=False)
    rows = run.kernel_summary("source", provenance=tmp_path / "torch_trace")

    total = rows["total_ns"].sum()
    assert run.kernel_summary("kernel")["total_ns"].sum() == total
    assert rows[rows["source"] == "(not compiled)"]["total_ns"].sum() < 0.05 * total
    assert {"fc1", "fc2", ""} == set(rows["module"])
    packed.write_bytes(packed.read_bytes()[:2000])
    with pytest.raises(TraceError, match=packed.name):
        read_provenance(packed)


def test_a_kernel_called_more_often_than_its_code_has_all_its_lines(trace: Path, tmp_path: Path) -> None:
    """And kernel_information.json, which has no key, is enough where one graph alone has the name."""
    information = {name: {"stack_traces": stacks, "pre_grad_nodes": ["n"]} for name, stacks in STACKS.items()}
    information["extern_kernels.mm:9"] = {"stack_traces": [], "pre_grad_nodes": ["other"]}
    path = tmp_path / "kernel_information.json"
    path.write_text(json.dumps(information))

    rows = dptrace.open(trace, cache=False).kernel_summary("source", provenance=path).set_index("source")

    assert (36_000, "n, other") == tuple(rows.loc["/home/me/model.py:7, /home/me/model.py:8", ["total_ns", "fx_nodes"]])
    assert 8_000 == rows.loc["(compiled; source unknown)", "total_ns"]


def test_without_the_files_it_says_how_to_get_them(trace: Path, tmp_path: Path) -> None:
    """Also where a folder has none, a log is cut, and where what is written is nonsense."""
    run = dptrace.open(trace, cache=False)
    with pytest.raises(UsageError, match="INDUCTOR_PROVENANCE=1"):
        run.kernel_summary("source")
    for text in ("", "V1126 22:36:38 1 x.py:1] {\n", '[{"a": 1}]', "\0" * 100):
        (tmp_path / "output_code.py").write_text(text)
        with pytest.raises(TraceError, match="TORCH_TRACE=FOLDER"):
            read_provenance(tmp_path)
    (tmp_path / "kernel_information.json").write_text("{")
    with pytest.raises(TraceError, match=r"kernel_information\.json"):
        read_provenance(tmp_path)


MODEL = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(64, 256), torch.nn.Linear(256, 8)
    def forward(self, x):
        h = self.up(x)
        h = torch.nn.functional.gelu(h) * 2
        return self.down(h)
net = torch.compile(Net())
def step():
    net(torch.ones(32, 64)).square().mean().backward()
step()
with torch.profiler.profile() as profiler:
    step()
profiler.export_chrome_trace("trace.json")
"""


@pytest.mark.slow
@pytest.mark.spawn
def test_a_compiled_model_on_a_cpu_is_mapped_to_its_lines(tmp_path: Path) -> None:
    """What torch itself writes: forward and backward kernels lie on the lines of forward, products in their module."""
    pytest.importorskip("torch")
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a compiler")
    (tmp_path / "model.py").write_text(MODEL)
    wanted = {"INDUCTOR_PROVENANCE": "1", "TORCH_TRACE": str(tmp_path / "compiled")}
    wanted |= {"TORCHINDUCTOR_CPP_ENABLE_KERNEL_PROFILE": "1", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    finished([sys.executable, "model.py"], 240, cwd=tmp_path, env=os.environ | wanted).check_returncode()

    rows = dptrace.open(tmp_path / "trace.json", cache=False).kernel_summary("source", provenance=tmp_path / "compiled")

    found = set(zip(rows.code.astype(str), rows.module.astype(str), rows.fx_nodes.astype(str), strict=True))
    assert ("h = self.up(x)", "up", "h") in found
    assert ("return self.down(h)", "down", "linear_1") in found
    assert any(code == "h = torch.nn.functional.gelu(h) * 2" and "gelu" in nodes for code, _, nodes in found)
    of_backward = rows[(rows.fx_nodes.astype(str) == "") & rows.source.str.contains("model.py")]
    assert {"up", "down"} <= set(of_backward.module)
    # Calls, not time: one that had to wait for a core takes longer than all others.
    compiled = rows[rows.source.str.contains("model.py")]["count"].sum()
    assert compiled > 0.5 * rows[rows.source != "(not compiled)"]["count"].sum(), rows[["source", "count", "total_ns"]]
