"""``dptrace predict``, its ``--memory``, and ``advise``: descriptions, recordings and messages, in every form."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import dptrace
from dptrace.commands.shared.main import cli
from dptrace.commands.shared.output import json_text
from dptrace.errors import UsageError
from dptrace.model.link_report import link_report
from dptrace.model.planning.describe import OPTIONS, Description
from tests.support.links_samples import ALPHA_S, BETA_S, GAMMA_S, measured, with_algorithms
from tests.support.paths import ROOT

SEVENTY = "--params 70B --gpus 64 --seq 4096 --batch 512"
MESSAGE = "predict --bytes 208MB --gpus 4 --link 5us:25GB/s"


def run(line: str, *more: str, code: int = 0) -> str:
    done = CliRunner(env={"COLUMNS": "140"}).invoke(cli, [*shlex.split(line), *more])
    assert code == done.exit_code, done.output
    return done.output


def figures(line: str, *more: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(run(line, *more, "--json").partition("\n! ")[0])
    return content


# Wrong use: each verb exits with 2 and names what is wrong.


@pytest.mark.heavy
def test_an_option_without_effect_is_refused() -> None:
    """The last option is named."""
    for line in (
        "--strategy fsdp --schedule interleaved --virtual-stages 2",
        "--strategy pp --pp 1 --schedule 1f1b",
        "--strategy pp --virtual-stages 4",
        "--virtual-stages 4",
        "--top-k 2",
        "--strategy ddp --shards 2",
        "--strategy fsdp --shards 2",
        "--strategy hsdp --shards 3",
    ):
        # All verbs ask one function, which two lines show.
        verbs = ("predict", "predict --memory", "advise") if "hsdp" in line or "top" in line else ("predict",)
        for verb in verbs:
            text = run(f"{verb} --params 1e9 --gpus 8 {line}", code=2)

            assert [word for word in line.split() if word.startswith("--")][-1] in text or "--schedule" in text, line


def test_what_is_refused() -> None:
    """A missing size, unknown names, what does not divide, and options of another question."""
    for line, fact in (
        ("predict --memory", "--params"),
        ("predict --memory --params seven", "seven"),
        ("predict --memory --params 7e9 --strategy dpp", "dpp"),
        ("predict --memory --params 7e9 --gpu h1000", "h1000"),
        ("predict --memory --params 7e9 --strategy tp --tp 3", "tp 3"),
        ("predict --memory --params 7e9 --layers 70 --hidden 8192", "7e+09"),
        ("predict --memory --params 7e9 --strategy 3d --gpus 64 --batch 7", "--batch 7"),
        ("predict --memory --params 7e9 --recompute-every 2", "add --recompute full"),
        ("predict --memory --params 7e9 --recompute full --recompute-every 99", "32 layers"),
        ("predict --memory --params 7e9 --strategy zero2 --cpu-offload", "--strategy fsdp"),
        ("predict --memory --params 1e9 --link pcie4", "--link"),
        ("predict --memory --params 1e9 --tokens 1e9", "--tokens"),
        ("predict --memory --params 1e9 --bytes 1e9", "--bytes"),
        ("predict --memory --params 1e9 --no-cache", "--no-cache"),
        ("predict --memory traces/ddp_cpu_2ranks --steps 11", "--steps"),
        ("predict --memory traces/ddp_cpu_2ranks --gpus 8", "--gpus"),
        ("predict --memory --params 1e9 -o memory.html", "memory.html"),
        ("predict --params 7e9 --json -o plan.html", "plan.html"),
        ("predict --params 7e9 --batch 100 --gpus 64 --strategy ddp", "100"),
        ("predict --params 7e9 --precision fp8 --gpu a100", "fp8"),
        ("predict --params 7e9 --link 5us:0GB/s", "5us:0GB/s"),
        ("predict --params 7e9 --link -5us:10GB/s", "latency in µs"),
        ("predict --params 7e9 --link 5us:-10GB/s", "bandwidth in GB/s"),
        ("predict --params 1e9 --gpu v100", "--precision fp16"),
        ("predict --params 7e9 --strategy fsdp --overlapped tp", "--strategy tp"),
        ("predict --params 7e9 --seq 10000000", "--family llama"),
        ("predict --memory --params 1e6 --experts 64 --vocab 1000000", "1e+06"),
        ("predict --params 7e9 --ep 2", "--experts"),
        ("predict --params 7e9 --schedule interleaved --virtual-stages 1", "--virtual-stages 1"),
        ("predict --params 7e9 --strategy ep", "--experts"),
        ("predict --params 7e9 --experts 4 --top-k 5", "--top-k 5"),
        ("predict --layers 2 --hidden 100 --heads 7", "--heads 7"),
        ("predict --params 1e9 --steps 11", "--steps"),
        ("predict traces/interleaved_cpu_2ranks --gpus 8", "--gpus"),
        ("predict --bytes 1MB --gpus 1", "--gpus 1"),
        ("predict --bytes 1MB --params 7e9", "--params"),
        ("predict --bytes 1MB --tokens 1e9", "--tokens"),
        ("predict --bytes 1MB --link wire", "wire"),
        ("predict --gamma 1 --params 7e9", "--bytes"),
        ("predict traces/ddp_cpu_2ranks --bytes 1MB", "--bytes"),
        ("advise", "--params 7e9"),
        ("advise traces/ddp_cpu_2ranks -o advice.html", "advice.html"),
        ("advise --params 7e9 --ranks 0", "--ranks"),
        ("advise --params 7e9 --no-cache", "--no-cache"),
        ("advise --params 7e9 --gpus 8 --tp 3", "8 GPUs"),
        ("advise --params 7e9 --strategy ddp --batch 3", "--batch 3"),
    ):
        assert fact in run(line, code=2), (line, fact)


def test_a_file_is_written_once(tmp_path: Path) -> None:
    """-o writes JSON or text, and overwrites only with --force."""
    path = tmp_path / "plan.json"
    run("predict --memory --params 7e9 --json -o", str(path))

    assert 112_000_000_000 == json.loads(path.read_text())["model_state_bytes"]
    assert "--force" in run("predict --memory --params 7e9 --json -o", str(path), code=2)
    run("predict --memory --params 13e9 --json --force -o", str(path))
    assert 208_000_000_000 == json.loads(path.read_text())["model_state_bytes"]


# Descriptions.


_DENSE = {"params": 7e9, "gpus": 16}
_STAGED = {**_DENSE, "strategy": "3d", "tp": 2, "pp": 4}
_SMALL: dict[str, Any] = {"layers": 8, "hidden": 1024, "heads": 8, "micro_batch": 1, "recompute": "full"}
_MIXED = {**_SMALL, "experts": 8, "gpus": 16, "strategy": "ep"}
_LATENT = {**_SMALL, "experts": 32, "top_k": 8, "kv_rank": 512, "gpus": 32, "strategy": "ep"}
CHANGES: dict[str, tuple[dict[str, Any], object]] = {
    "model": (_DENSE | {"params": None}, "llama3-8b"), "params": (_DENSE, 13e9), "layers": (_DENSE, 24),
    "layers_of": (_DENSE | {"params": None}, "784,1024,512,10"), "hidden": (_DENSE, 2048), "heads": (_STAGED, 64),
    "kv_heads": (_STAGED, 8), "mlp": (_STAGED, 8192), "vocab": (_STAGED, 100_000), "seq": (_STAGED, 4096),
    "family": (_STAGED, "llama"), "experts": (_MIXED, 16), "top_k": (_MIXED, 1), "shared_experts": (_MIXED, 1),
    "dense_layers": (_MIXED, 4), "dense_mlp": (_MIXED | {"dense_layers": 4}, 8192), "expert_nodes": (_LATENT, 1),
    "head_width": (_STAGED, 64), "kv_rank": (_LATENT, 256), "query_rank": (_LATENT, 512), "rope_width": (_LATENT, 32),
    "precision": (_STAGED, "fp32"), "optimizer": (_STAGED, "sgd"), "master_weights": (_STAGED, False),
    "gradient_bytes": (_STAGED, 4), "batch": (_STAGED, 64), "micro_batch": (_STAGED, 1),
    "recompute": (_STAGED, "full"), "recompute_every": (_STAGED | {"recompute": "full"}, 2),
    "attention": (_STAGED, "flash"), "dropout": (_STAGED, False), "fused_loss": (_DENSE, True), "gpus": (_STAGED, 32),
    "gpu": (_STAGED, "a100"), "gpu_memory": (_DENSE, 40e9), "gpus_per_node": (_STAGED, 2), "strategy": (_DENSE, "tp"),
    "tp": (_STAGED, 4), "cp": (_DENSE, 2), "pp": (_STAGED, 2), "ep": (_MIXED, 2), "expert_tp": (_MIXED | {"tp": 2}, 1),
    "zero": (_STAGED, 3), "shards": (_DENSE | {"strategy": "hsdp"}, 4), "schedule": (_STAGED, "interleaved"),
    "virtual_stages": (_STAGED | {"schedule": "interleaved"}, 4), "cpu_offload": (_DENSE | {"strategy": "fsdp"}, True),
    "link": (_STAGED, "pcie4"), "overlapped": (_STAGED, "tp"), "mfu": (_STAGED, 0.3),
}  # fmt: skip
"""Of each option: a description, and a value with which another answer follows."""


def answers(described: dict[str, Any]) -> list[Any]:
    """Return what is predicted for each plan, without what only repeats the description."""
    content = dptrace.predict(**{name: value for name, value in described.items() if value is not None})
    keys = ("layout", "per_gpu_bytes", "host_bytes", "step_s", "fits")
    return [[row[key] for key in keys] for row in content["candidates"]]


@pytest.mark.slow
def test_every_option_changes_the_answer() -> None:
    """No option is ignored: each gives other bytes on a GPU, or another step, than without it."""
    known: dict[str, list[Any]] = {}
    same = []
    for name, (base, value) in CHANGES.items():
        plain = {**base, **({"params": 8e9} if name in ("model", "layers_of") else {})}
        if str(plain) not in known:
            known[str(plain)] = answers(plain)
        if answers({**base, name: value}) == known[str(plain)]:
            same.append(name)

    assert not same
    assert CHANGES.keys() == OPTIONS.keys()


@pytest.mark.heavy
def test_an_option_that_nothing_uses_is_refused() -> None:
    """By prediction and advice alike, and named; from Python as the keyword."""
    for described, option in (
        ({**_DENSE, "schedule": "interleaved", "batch": 3, "gpus": 8}, "--schedule"),
        ({**_DENSE, "strategy": "ddp", "schedule": "gpipe"}, "--schedule"),
        ({"params": 1e9, "gpus": 1, "schedule": "1f1b"}, "--schedule"),
        ({**_DENSE, "virtual_stages": 4}, "--virtual-stages"),
        ({**_DENSE, "overlapped": "ep"}, "--overlapped"),
        ({**_DENSE, "strategy": "fsdp", "overlapped": "tp"}, "--overlapped"),
        ({**_MIXED, "strategy": "fsdp", "overlapped": "all"}, "--overlapped"),
        ({**_LATENT, "kv_heads": 8}, "--kv-heads"),
        ({**_LATENT, "expert_nodes": 100}, "--expert-nodes"),
        ({**_MIXED, "expert_nodes": 1}, "--expert-nodes"),
        ({**_MIXED, "expert_tp": 1}, "--expert-tp"),
        ({**_MIXED, "dense_mlp": 4096}, "--dense-mlp"),
        ({"params": 1e9, "gpus": 1, "zero": 1}, "--zero"),
        ({"layers_of": "784,64,10", "fused_loss": True}, "--fused-loss"),
        ({"layers_of": "784,64,10", "overlapped": "tp"}, "--overlapped"),
        ({**_DENSE, "strategy": "tp", "cpu_offload": True}, "--cpu-offload"),
        ({**_DENSE, "strategy": "zero1", "cpu_offload": True}, "--cpu-offload"),
    ):
        for verb in (dptrace.predict, dptrace.advise):
            with pytest.raises(UsageError, match=option[2:].replace("-", "[-_]")):
                verb(**described)


def test_memory_refuses_what_only_time_depends_on() -> None:
    """Messages of tensor parallelism that are cut take less memory; those of experts do not."""
    for option in ({"link": "pcie4"}, {"mfu": 0.5}, {"overlapped": "ep"}):
        with pytest.raises(UsageError, match=next(iter(option))):
            dptrace.memory(**(_MIXED if "overlapped" in option else _DENSE), **option)
    held = [dptrace.memory(**_STAGED, overlapped=one)["per_gpu_bytes"] for one in ("none", "tp")]
    assert held[1] < held[0]


def test_experts_are_spread_over_gpus_that_there_are() -> None:
    """--ep 2 on GPUs that all hold one copy has no plan; it listed some without any."""
    content = dptrace.predict(**_SMALL, experts=8, gpus=16, ep=2)

    for row in content["candidates"]:
        degrees = row["degrees"]
        assert degrees["dp"] * degrees["cp"] % degrees["ep"] == 0, row["layout"]


def test_every_part_of_a_description_is_an_option() -> None:
    """With its help."""
    for verb in ("predict", "advise"):
        text = run(f"{verb} --help")
        assert [] == [name for name in OPTIONS if name.replace("_", "-") not in text]


def test_the_verb_of_memory_before_it_was_an_option() -> None:
    """It still works, with its options, and is not listed."""
    assert figures("memory --params 7e9 --gpu a100") == figures("predict --memory --params 7e9 --gpu a100")
    assert figures("memory traces/ddp_cpu_2ranks") == figures("predict --memory traces/ddp_cpu_2ranks")
    assert "  memory " not in run("--help")


def test_offloaded_state_is_in_the_memory_of_the_cpu() -> None:
    """A GPU of eight holds what it gathers and activations; the CPU an eighth of 112 GB for each of them."""
    line = "predict --memory --params 7e9 --strategy fsdp"
    kept, offloaded = figures(line), figures(f"{line} --cpu-offload")

    assert (0, 14_000_000_000) == (kept["host_bytes"], offloaded["host_bytes"])
    assert 14_000_000_000 == kept["per_gpu_bytes"] - offloaded["per_gpu_bytes"]
    assert 0 == offloaded["per_gpu"]["optimizer_bytes"] < offloaded["per_gpu"]["gathered_bytes"]


@pytest.mark.heavy
def test_an_offloaded_plan_is_told_from_others_by_its_name() -> None:
    """In the answers of all three verbs, in each of their lists; of --memory only what can be offloaded."""
    described: dict[str, Any] = {"params": 7e9, "cpu_offload": True}
    prediction, advice = dptrace.predict(**described), dptrace.advise(**described)
    held = {row["strategy"]: row["layout"] for row in dptrace.memory(**described, strategy="fsdp")["strategies"]}
    names = [prediction["layout"], *(row["layout"] for row in prediction["candidates"])]
    names += [advice["chosen"]["label"], *(row["label"] for row in advice["candidates"])]

    assert all(name.endswith(" offloaded") for name in names)
    assert ("DDP ×8", "FSDP ×8 offloaded") == (held["ddp"], held["zero3"])
    assert "offloaded" not in dptrace.predict(params=7e9)["layout"]


def test_a_mixture_has_a_shape_of_its_size() -> None:
    """With 64 experts, 7 billion parameters were 40 times scaled from a shape of 277 billion."""
    for params, experts in ((7e9, 8), (7e9, 64), (100e9, 8), (1e9, 16), (1e12, 128)):
        shape = Description(params=params, experts=experts).shape()

        assert pytest.approx(params, rel=0.25) == shape.shape_parameters, (params, experts)


def test_experts_that_are_launched_one_by_one_are_said() -> None:
    """In float8, a host takes longer to launch 128 of them, 25 operators each, than a GPU to compute."""
    described: dict[str, Any] = {"model": "qwen3-30b-a3b", "strategy": "fsdp", "gpus": 64, "precision": "fp8"}
    (said,) = [note for note in dptrace.predict(**described)["assumptions"] if "launches" in note]

    assert "128 experts" in said
    assert "25 each" in said


@pytest.mark.slow
def test_what_fits_and_what_is_fastest() -> None:
    """70 billion on 64 H100s: sharded plans fit, replicated ones do not; the first is fastest, in both verbs."""
    content, advice = figures(f"predict {SEVENTY}"), figures(f"advise {SEVENTY}")
    fitting = {row["layout"] for row in content["candidates"] if row["fits"]}

    assert "FSDP ×64" in fitting
    assert not {"DDP ×64", "ZeRO-1 ×64", "ZeRO-2 ×64"} & fitting
    assert content["step_s"] == min(row["step_s"] for row in content["candidates"] if row["fits"])
    assert pytest.approx(content["step_s"]) == sum(
        content[part] for part in ("compute_s", "bubble_s", "optimizer_s", "exposed_s")
    )
    assert (content["layout"], content["tried"]) == (advice["chosen"]["label"], advice["tried"])
    assert "layouts compared" in " ".join(content["assumptions"])
    assert advice == json.loads(json.dumps(dptrace.advise(params=70e9, gpus=64, seq=4096, batch=512)))


@pytest.mark.slow
def test_each_strategy() -> None:
    """Each is predicted, with its volume and its time by collective."""
    for strategy in ("ddp", "zero1", "zero2", "zero3", "fsdp", "hsdp", "tp", "pp", "3d", "ep"):
        experts = "--experts 8" if strategy == "ep" else "--params 7e9"
        content = figures(f"predict --layers 32 --hidden 4096 --gpus 64 --strategy {strategy} {experts}")

        assert strategy == content["strategy"], strategy
        assert all(one["total_s"] > 0 and one["sent_bytes"] > 0 for one in content["communication"]), strategy
        assert content["communication_s"] == pytest.approx(sum(one["total_s"] for one in content["communication"]))


@pytest.mark.heavy
def test_odd_clusters_and_narrowed_searches_have_an_answer() -> None:
    """What can't divide the GPUs is left out, and what is given is kept."""
    for line in (
        "--gpus 1",
        "--gpus 3",
        "--gpus 6",
        "--strategy ddp --pp 2 --schedule gpipe",
        "--shards 4",
        "--cpu-offload",
        "--schedule interleaved --virtual-stages 4",
    ):
        assert figures(f"predict --params 350e6 {line}")["fits"], line


@pytest.mark.heavy
def test_every_plan_has_the_command_that_predicts_it() -> None:
    """FSDP in groups, combinations and interleaved stages too: dptrace predict finds the same step."""
    content = figures("advise --params 13B --gpus 32 --gpus-per-node 4 --gpu a100-40")

    assert any(one["shards"] not in (1, one["degrees"]["dp"]) for one in content["candidates"])
    for one in content["candidates"]:
        predicted = figures(one["command"].removeprefix("dptrace "))
        assert one["step_ns"] == round(1e9 * predicted["step_s"]), one["command"]
        assert one["per_gpu_bytes"] == predicted["per_gpu_bytes"], one["command"]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("line", "page", "chart"),
    [
        (f"predict {SEVENTY}", "Predicted step", "FSDP ×64"),
        (f"advise {SEVENTY}", "Memory of a GPU", "FSDP ×64"),
        (MESSAGE, "Cost of a message", "halving-doubling"),
        ("predict traces/interleaved_cpu_2ranks", "On other numbers of ranks", "ProfilerStep#11:"),
    ],
)
def test_pages_and_charts(line: str, page: str, chart: str, tmp_path: Path) -> None:
    """-o writes a page or a chart, by the suffix."""
    for suffix, fact in ((".html", page), (".svg", chart)):
        path = tmp_path / f"plan{suffix}"
        run(f"{line} -q -o", str(path))
        assert fact in path.read_text()


def test_what_is_assumed_of_samples_is_said() -> None:
    """A named model has layers, not samples: 2,048 tokens are assumed unless they are given."""
    assumed, given = (dptrace.predict(model="llama3-8b", strategy="fsdp", **one) for one in ({}, {"seq": 2048}))

    assert any("2,048 tokens" in line for line in assumed["assumptions"])
    assert not any("2,048 tokens" in line for line in given["assumptions"])


def test_the_batch_that_is_assumed_has_whole_micro_batches() -> None:
    """Micro-batches of 3 and of 64 samples go into it, without --batch."""
    found = [dptrace.predict(params=1e9, strategy="fsdp", micro_batch=size)["batch"] for size in (1, 3, 64)]

    assert [8 * 8, 8 * 9, 8 * 64] == found


@pytest.mark.heavy
def test_nccl_gains_nothing_over_pcie() -> None:
    """Cards without NVLink exchange through the hosts' memory in any case."""
    found = {}
    for gpu in ("rtx4090", "h100"):
        checks = dptrace.advise(params=3e9, gpu=gpu, strategy="fsdp")["checks"]
        found[gpu] = next(one for one in checks if one["name"] == "nccl")

    assert [found[gpu]["status"] for gpu in ("rtx4090", "h100")] == ["skip", "keep"]


# Measured links, and one message.


@pytest.mark.heavy
def test_measured_links_replace_nominal_ones(tmp_path: Path) -> None:
    """A file of dptrace links on one machine is the link within nodes: slower than NVLink, it is exposed."""
    path = tmp_path / "links.json"
    path.write_text(json_text(link_report(with_algorithms(measured(kinds=("all_reduce", "send_recv"))))))
    base = "predict --params 7e9 --gpus 4 --strategy ddp --batch 4"
    nominal, own = figures(base), figures(f"{base} --links", str(path))
    message = "predict --bytes 1e6 --gpus 4"
    measured_message = figures(f"{message} --links", str(path))

    assert "links.json (all-reduce)" == own["links"][0]["name"]
    assert nominal["links"][1] == own["links"][1]
    assert own["exposed_s"] > nominal["exposed_s"]
    assert pytest.approx((ALPHA_S, 1 / BETA_S), rel=0.05) == tuple(
        measured_message["links"][0][key] for key in ("alpha_s", "bytes_per_s")
    )
    assert pytest.approx(GAMMA_S, rel=0.05) == measured_message["gamma_s_per_byte"]
    assert pytest.approx(2e-12) == figures(f"{message} --gamma 2 --links", str(path))["gamma_s_per_byte"]


# Recordings.


@pytest.mark.heavy
def test_a_recording_on_other_numbers_of_ranks() -> None:
    """Of two ranks of interleaved: the measured step lies between both bounds, and a mean rank's parts add up."""
    content = figures("predict traces/interleaved_cpu_2ranks")
    here = next(row for row in content["scaling"] if row["gpus"] == 2)
    point = content["roofline"]

    assert content["ideal_step_s"] <= content["step_s"] <= content["serial_step_s"] == here["strong_serial_s"]
    assert pytest.approx(content["step_s"]) == content["compute_s"] + content["exposed_s"] + content["rest_s"]
    assert [1 << power for power in range(11)] == [row["gpus"] for row in content["scaling"]]
    # 6 FLOPs for each weight and 512 samples, but 4 in the first layer, whose input has no gradient; over 33.7 MB sent.
    first, others = 784 * 2048, 2048 * 2048 + 2048 * 1024 + 1024 * 512 + 512 * 10
    assert 512 * (4 * first + 6 * others) == point["flops"]
    assert pytest.approx(4 * 8_432_138, rel=0.01) == point["sent_bytes"]
    assert "compute-bound" == point["regime"]


@pytest.mark.heavy
def test_a_recording_is_read_as_every_verb_reads_it(tmp_path: Path) -> None:
    """--steps and --ranks choose; a file is announced once."""
    folder, path = f"predict {ROOT / 'traces' / 'ddp_cpu_2ranks'}", tmp_path / "out.txt"

    assert figures(folder)["step_s"] != figures(f"{folder} --steps 11")["step_s"]
    assert 1 == run(f"{folder} -o", str(path)).count(f"Wrote {path}")


@pytest.mark.heavy
def test_advice_on_a_recording() -> None:
    """Where its step goes, and gains by replay."""
    text, content = run("advise traces/naive_cpu_2ranks"), figures("advise traces/naive_cpu_2ranks --ranks 0")

    assert all(said in text for said in ("What takes most of the step?", "by replay"))
    assert ("naive", "traces/naive_cpu_2ranks") == (content["mode"], content["recorded"])


def test_a_recording_without_memory_shows_what_to_expect() -> None:
    """Of a run from before memory was recorded: 8.4 million parameters in float32, SGD."""
    compared = figures("predict --memory traces/interleaved_cpu_2ranks")["recorded"]["compared"]

    assert [4 * 8_432_138] * 2 == [row["expected_bytes"] for row in compared[:2]]
    assert {None} == {row["measured_bytes"] for row in compared}
    assert run("predict --memory traces/interleaved_cpu_2ranks").startswith(
        "8.4 million parameters, interleaved on 2 ranks"
    )


@pytest.mark.slow
def test_an_option_goes_before_the_named_model() -> None:
    """Also where it has the value that it has without a model."""
    for options, parameters in (
        ("--model mixtral-8x7b --experts 1", 7.24e9),
        ("--model mixtral-8x7b", 46.7e9),
        ("--model deepseek-v3 --kv-rank 0", 688e9),
        ("--model deepseek-v3 --dense-layers 0", 704e9),
    ):
        answer = figures(f"predict {options} --gpus 64 --strategy fsdp")

        assert parameters == pytest.approx(answer["params"], rel=0.01), (options, parameters)


@pytest.mark.slow
def test_experts_are_chosen_among_those_of_the_named_model() -> None:
    """--top-k needs experts, and a model may have them."""
    run("predict --model mixtral-8x7b --top-k 1 --gpus 8")
    run("predict --model llama3-8b --top-k 1 --gpus 8", code=2)
    run("predict --model llama3-8b --strategy ddp --cpu-offload --gpus 8", code=2)
