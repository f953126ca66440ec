"""``dptrace schema``: what a verb prints with --json has its schema, and nothing else has."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from dptrace.commands.schema import schema_of
from dptrace.commands.shared.main import COMMANDS, cli
from dptrace.commands.shared.output import json_text
from dptrace.model.link_report import link_report
from tests.analysis.cross_rank.test_pipeline_bubble import gpipe, run_of
from tests.analysis.kernels.test_source import CODE, FORWARD, GRAPH
from tests.flight.test_dumps import RAS
from tests.support.bench_tables import CSV
from tests.support.flight_files import call, write
from tests.support.kineto_files import KinetoFile, training_step
from tests.support.layered_files import layered_file
from tests.support.links_samples import measured, with_algorithms
from tests.support.memory_files import memory_run
from tests.support.paths import ROOT
from tests.support.real_traces import REAL
from tests.support.replay_files import write_job, write_job_with_modules
from tests.support.stage_timelines import write_stages
from tests.support.sweeps import make_sweep, result

WORKLOAD = "--params 8M --tokens 1k --peak-tflops 1"
LINES = f"""
analyze naive {WORKLOAD}
analyze interleaved
analyze incomplete
analyze memory --memory
analyze shared/straggler_v100_4ranks
analyze layers --hta-compat
kernels layers
kernels layers --by operator --per-rank
kernels layers --by operator-shape
kernels layers --by module
kernels layers --by layer
kernels layers --by source --provenance torch_trace
kernels layers --by annotation
kernels layers --by phase --kind compute
kernels layers --by host --per-rank
kernels naive --no-findings
kernels shared/ns_v100_1gpu
diff naive interleaved --fail-if wall>+300%
diff --before naive single --after interleaved ddp {WORKLOAD}
diff layers job
baseline save main naive --folder baselines --force
baseline list --folder baselines
history naive interleaved
log naive --to tensorboard --folder board --no-pages
flight dumps
flight ras.json
whatif naive
whatif job --no-straggler --bandwidth 2x
whatif ddp --bucket-cap-mb 1,4,100
whatif timeline.json.gz
critical-path naive
critical-path modules
hta shared/ns_v100_1gpu idle-breakdown
bench --from table.csv -o bench
links --from links.json
links --from algorithms.json
predict --memory --params 7e9
predict --memory --params 7e9 --gpus 64 --strategy fsdp --cpu-offload
predict --memory --layers-of 784,512,10
predict --memory ddp --gpu h100
predict --memory interleaved
predict --params 7e9 --gpus 8 --strategy ddp --tokens 1T
predict --params 1e9 --gpus 1
predict --bytes 208MB --gpus 16 --gamma 1
predict ddp
predict shared/sharded_h100_8ranks
advise --params 70B --gpus 64
advise --params 7e9 --gpus 8 --strategy ddp
advise ddp
explain hierarchical
explain 1f1b --ranks 3
explain moe
explain zero --step 1
cache
doctor
""".strip().splitlines()

GRAPH_LOG = "".join(
    f"V1126 22:36:38.070000 1 torch/_inductor/x.py:1] {json.dumps(head)}\n" + payload.replace("\n", "\n\t").join("\t\n")
    for head, payload in (
        ({"dynamo_output_graph": {}}, GRAPH),
        ({"inductor_output_code": {}}, CODE),
        ({"artifact": {"name": "fx_graph_cache_miss", "encoding": "json"}}, json.dumps({"key": FORWARD})),
    )
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a run of each kind, named as in LINES."""
    made = tmp_path_factory.mktemp("runs")
    for name in ("naive", "interleaved", "ddp"):
        (made / name).symlink_to(ROOT / "traces" / f"{name}_cpu_2ranks")
    (made / "single").symlink_to(ROOT / "traces" / "single_cpu")
    (made / "shared").symlink_to(REAL)
    for name in ("layers", "incomplete", "memory", "job", "modules"):
        (made / name).mkdir()
    for rank in (0, 1):
        layered_file(rank, 2).write(made / "layers" / f"rank{rank}.json")
    training_step(KinetoFile(rank=0, world_size=3), 4, 0).write(made / "incomplete" / "rank0.json")
    memory_run(made / "memory")
    write_job(made / "job")
    write_job_with_modules(made / "modules")
    (made / "torch_trace").mkdir()
    (made / "torch_trace" / "dedicated_log_torch_trace_rank_0_x.log").write_text(GRAPH_LOG)
    write(made / "dumps", {0: [call("all_reduce", 1), call("broadcast", 2, "started")], 1: [call("all_reduce", 1)]})
    (made / "ras.json").write_text(json.dumps(RAS))
    write_stages(made / "timeline.json.gz", lambda way, stage, *_: 1000.0 + 500 * stage, 2, 2)
    (made / "table.csv").write_text(CSV)
    (made / "links.json").write_text(json_text(link_report(measured())))
    some = with_algorithms(measured(kinds=("all_reduce", "send_recv")))
    (made / "algorithms.json").write_text(json_text(link_report(some)))
    return made


@cache
def validator(verb: str) -> Any:
    """Return what checks an answer, by the schema as it is printed."""
    jsonschema = pytest.importorskip("jsonschema")  # it builds grammars for two seconds
    schema = json.loads(CliRunner().invoke(cli, ["schema", verb]).stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def check(verb: str, answer: Any) -> None:
    errors = validator(verb).iter_errors(answer)
    problem = pytest.importorskip("jsonschema").exceptions.best_match(errors)

    assert problem is None, (list(problem.absolute_path), problem.message[:300])


@pytest.mark.slow
@pytest.mark.heavy
@pytest.mark.parametrize("line", LINES)
def test_an_answer_has_its_schema(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key, each type, and no other key; of every verb, and of each form that its answer has."""
    if "shared/" in line and not REAL.exists():
        pytest.skip("needs ../shared")
    if line.startswith("log "):
        pytest.importorskip("tensorboardX")
    monkeypatch.chdir(folder)
    words = [word.replace(">", " > ") for word in line.split()]
    done = CliRunner().invoke(cli, [*words, "--json"])

    assert done.exit_code in (0, 3), done.output
    check(words[0], json.loads(done.stdout))


@pytest.mark.heavy
def test_answers_of_long_measurements_have_their_schema(tmp_path: Path) -> None:
    """A sweep with and without a line and a failed point; a pipeline; a self-test. What is missing is null."""
    from dataclasses import asdict

    from dptrace.doctor.selftest import SelfTest, Verdict

    cap, broken = "bucket-cap-mb", {"failed": "out of memory"}
    for number, (option, failed) in enumerate(((cap, False), (cap, True), ("batch-size", False))):
        values = {"2": result(0.1), "4": broken if failed else result(0.11), "26": result(0.2)}
        content = make_sweep(tmp_path / str(number), {option: tuple(values)}, values).result.content
        check("sweep", json.loads(json_text(content)))
    check("analyze", run_of(gpipe(2, 4), 10, 20).to_dict())
    printed, explained = (
        CliRunner().invoke(cli, [*words, "--json"]).stdout for words in (["doctor"], ["explain", "ring"])
    )
    assert not any('""' in text for text in (printed, explained))
    report = json.loads(printed)
    test = SelfTest(("record",), (Verdict("steps", "ok", "4 steps."),), 1.5)
    check("doctor", json.loads(json_text(report | {"selftest": asdict(test) | {"works": test.works}})))


@pytest.mark.slow
@pytest.mark.parametrize(
    "place", ["", "ranks.0", "ranks.1.steps.2", "findings.0", "clocks.0", "collectives.3.members.1"]
)
def test_a_schema_allows_nothing_else(place: str, folder: Path) -> None:
    """No further key, none missing, and no other type, wherever they are."""
    text = CliRunner().invoke(cli, ["analyze", str(folder / "naive"), "--json"]).stdout
    schema = validator("analyze")

    def is_valid(change: Callable[[dict[str, Any]], object]) -> bool:
        answer = part = json.loads(text)
        for key in filter(None, place.split(".")):
            part = part[int(key) if key.isdigit() else key]
        change(part)
        return bool(schema.is_valid(answer))

    keys = list[str]()
    assert is_valid(lambda part: keys.extend(part))
    assert not is_valid(lambda part: part.update({"another": 1}))
    for key in keys:
        assert not is_valid(lambda part, key=key: part.update({key: [{"no": "such"}]})), key  # type: ignore[misc]
        optional = key == "utilization"
        assert optional == is_valid(lambda part, key=key: part.pop(key)), key  # type: ignore[misc]


def test_every_verb_with_json_has_a_schema() -> None:
    """And no other; a wrong verb is told which have one."""
    has_json = [
        verb
        for verb in COMMANDS
        if any("--json" in option.opts for option in cli.get_command(click.Context(cli), verb).params)  # type: ignore[union-attr]
    ]
    listed, wrong = (CliRunner().invoke(cli, ["schema", *verb]) for verb in ([], ["view"]))

    assert sorted(has_json) == sorted(listed.stdout.split())
    assert all("properties" in text or "anyOf" in text for text in map(json.dumps, map(schema_of, has_json)))
    assert (2, True) == (wrong.exit_code, all(verb in wrong.stderr for verb in has_json))


@pytest.mark.heavy
def test_a_watch_has_its_schema(tmp_path: Path) -> None:
    """With suspects and a change, and of a run of one rank."""
    from tests.support.watch_records import Job, Plant

    plants = [Plant(1, "data", 15.0), *(Plant(rank, "forward", 20.0, (40, 99)) for rank in range(3))]
    for name, job in (("several", Job("ddp", 3, plants).run(84)), ("one", Job("ddp", 1).run(9))):
        job.write(tmp_path / name)
        content = json.loads(CliRunner().invoke(cli, ["watch", str(tmp_path / name), "--json"]).stdout)
        check("watch", content)
        (tmp_path / name / "summary.json").write_text(json.dumps(content))
    both = [str(tmp_path / "one"), str(tmp_path / "several")]
    for verb in ("diff", "history"):
        check(verb, json.loads(CliRunner().invoke(cli, [verb, *both, "--json"]).stdout))
