"""The public functions and errors."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from html import unescape
from pathlib import Path
from typing import Any, get_args

import pandas as pd
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import dptrace
import dptrace.errors
from dptrace import Run
from dptrace.api import INTERNAL, in_keywords
from dptrace.commands.shared.main import cli
from dptrace.commands.shared.output import json_text
from dptrace.core.table import Column, frame, html_table
from dptrace.timeline.model import Collective
from dptrace.viewers.views.names import NAMES, ViewName
from tests.support.builders import TimelineBuilder
from tests.support.paths import TRACES


def test_every_public_name_is_there() -> None:
    """All names of ``dptrace.__all__`` resolve, including those imported on first use, and are completed when typed."""
    assert set(dptrace.__all__) <= set(dir(dptrace))
    for name in dptrace.__all__:
        assert getattr(dptrace, name) is not None


def test_errors_are_one_tree() -> None:
    """DptraceError is the base of all of them, each has an exit code, and survives the way to another process."""
    errors = [getattr(dptrace, name) for name in dptrace.errors.__all__ if name.endswith("Error")]

    assert all(issubclass(error, dptrace.DptraceError) for error in errors)
    assert {1, 2} == {error.exit_code for error in errors}
    # A worker's error has its message, and its type, in the process that reports it.
    for error in (dptrace.MissingExtraError("Reading hf://", "huggingface"), dptrace.TraceError("a.json: is empty.")):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(error), str(error)) == (type(copy), str(copy))


def test_errors_name_keywords() -> None:
    """Whoever calls a function has typed no option."""
    for call, says in (
        (lambda run: run.whatif(bandwidth="fast"), "bandwidth=fast: expected a factor"),
        (lambda run: run.whatif(kernels={"nothing": 2}), "kernels 'nothing' fits no kernel"),
        (lambda run: run.whatif(bucket_cap_mb=0), "bucket_cap_mb=0: must be above 0"),
        (
            lambda run: dptrace.predict(),
            "Give the model: model=llama3-8b, params=7e9, layers and hidden, or",
        ),
        (lambda run: dptrace.predict(params=7e9, precision="fp1"), "precision=fp1: is not known. "),
        (lambda run: dptrace.explain("ring", alpha_us=1), "alpha_us and bandwidth_gbps describe a link"),
        (lambda run: dptrace.predict_message(1e6, gamma_ps=-1), "gamma_ps=-1: "),
    ):
        with pytest.raises(dptrace.UsageError) as error:
            call(dptrace.open(TRACES / "ddp_cpu_2ranks"))
        assert str(error.value).startswith(says)


def test_commands_in_errors_stay_as_they_are_typed() -> None:
    """Only an option outside of a command becomes a keyword."""

    @dptrace.api.speaks_python()
    def fail() -> None:
        raise dptrace.UsageError("--link 3: record with dptrace record --light -o a--b, or leave --no-link out.")

    assert "Add link=NAME or link=FILE." == in_keywords("Add --link NAME or --link FILE.")
    with pytest.raises(dptrace.UsageError, match=r"^link=3: record with dptrace record --light -o a--b, or leave"):
        fail()


def test_runs_are_equal_by_what_they_hold() -> None:
    """Read twice, with and without the cache, a run is the same key of a dictionary; a part of it is another."""
    path = TRACES / "ddp_cpu_2ranks"
    run, again, uncached = dptrace.open(path), dptrace.open(path), dptrace.open(path, cache=False)

    assert run == again == uncached
    assert {run: 1} == {again: 1}
    assert not any(
        run == other for other in (run.select(ranks=0), run.select(steps=11), dptrace.open(TRACES / "single_cpu"), 3)
    )
    assert run.select(ranks=0) == again.select(ranks=[0])


def test_findings_are_those_that_analyze_prints() -> None:
    """Their text, gain and advice, in the same order."""
    path = TRACES / "ddp_h200_2ranks"
    frame = dptrace.open(path).findings()
    printed = json.loads(CliRunner().invoke(cli, ["analyze", str(path), "--json"]).stdout)["findings"]
    text = " ".join(CliRunner().invoke(cli, ["analyze", str(path), "--findings"]).stdout.split())

    assert len(frame) == len(printed) > 1
    for name in ("kind", "text", "advice", "gain_ns", "gain_next_ns"):
        assert [one[name] for one in printed] == [None if pd.isna(value) else value for value in frame[name]]
    places = [text.find(words.split(":")[0].split(",")[0]) for words in frame["text"]]
    assert places == sorted(places)
    assert places[0] >= 0


@pytest.mark.heavy
def test_a_missing_value_has_one_type() -> None:
    """What a call does not say is <NA> in a frame and null in JSON, in each table; all text is string."""
    unknown = Collective("all_reduce")
    built = TimelineBuilder(0).compute(0, 400_000).all_reduce(100_000, 200_000).build()
    bare = Run("x", (replace(built, collectives=(unknown,)),))
    calls, data = bare.collectives(), json.loads(json_text(bare.to_dict()))
    both = ["group", "dtype", "seq"]

    assert calls[[*both, "group_size", "label"]].isna().all(axis=None)
    assert bare.matched_collectives()[[*both, "name"]].isna().all(axis=None)
    assert {None} == {data["ranks"][0]["collectives"][0][name] for name in (*both, "group_size", "label")}
    assert {None} == {data["collectives"][0][name] for name in (*both, "name", "group_description")}
    run = dptrace.open(TRACES / "ddp_cpu_2ranks")
    whatif = run.whatif(bandwidth=2)
    for shown in (
        run.steps(),
        run.kernels(),
        run.collectives(),
        run.findings(),
        whatif.figures(),
        run.critical_path().kernels(),
    ):
        texts = shown.select_dtypes(["object", "string"])
        assert all(
            isinstance(dtype, pd.StringDtype) or not isinstance(shown[name].iloc[0], str)
            for name, dtype in texts.dtypes.items()
        )


def test_a_run_completes_to_what_is_for_people() -> None:
    """Of a run, only what the reference documents is completed; what dptrace's parts use is there, but not offered."""
    run = dptrace.open(TRACES / "single_cpu")
    shown = {name for name in dir(run) if not name.startswith("_")}

    assert {"steps", "findings", "whatif", "show", "path", "ranks"} <= shown
    assert not shown & INTERNAL
    assert all(hasattr(run, name) for name in INTERNAL)


def test_steps_have_numbers_that_sort_and_missing_values_one_type() -> None:
    """ "#10" comes after "#9"; a step outside all steps is <NA>, in its name and in its number."""
    rows = [{"step": name, "count": count} for name, count in (("ProfilerStep#10", 1), ("ProfilerStep#9", None))]
    table = (Column("step", "string", ""), Column("count", "Int64", ""))
    named, without = frame(rows, table), frame([{"step": None, "count": 3}, {"step": "warm", "count": 2}], table)

    assert ["ProfilerStep#9", "ProfilerStep#10"] == named.sort_values("step_number")["step"].tolist()
    assert [True, True] == without["step_number"].isna().tolist()
    assert {"step": "string", "step_number": "Int64", "count": "Int64"} == dict(named.dtypes.astype(str))
    assert dict(named.dtypes) == dict(without.dtypes) == dict(frame([], table).dtypes)


@given(st.text(alphabet="<>&\"'ab", max_size=12))
def test_a_notebooks_table_has_texts_as_they_are(text: str) -> None:
    """Whatever a trace calls things, a cell shows it and runs nothing."""
    html = html_table(text, ("name", text), [(text, text)], [text])
    cells = [unescape(cell) for cell in re.findall(r"<(?:p|th|td)>(.*?)</(?:p|th|td)>", html)]

    assert [text, "name", text, text, text, text] == cells
    assert not re.search(r"<(?!/?(table|tr|th|td|p)>)", html)


def test_view_names_are_the_views() -> None:
    """Type checkers know all names that show() takes, in the order of the list."""
    assert [*NAMES] == [*get_args(ViewName)]


@pytest.mark.slow
def test_a_run_is_one_line_and_a_small_table() -> None:
    """A notebook shows a run and a comparison in a few lines, whatever their size."""
    run = dptrace.open(TRACES / "interleaved_cpu_2ranks")
    comparison = dptrace.compare(run, run)

    for shown in (run, comparison):
        assert "\n" not in repr(shown)
        assert len(repr(shown)) < 200
    for table in (run, comparison, run.whatif(bandwidth=2), dptrace.advise(run), dptrace.advise(params=7e9, gpus=16)):
        assert len(table._repr_html_()) < 9_000
        assert "<table>" in table._repr_html_()


@pytest.mark.heavy
def test_a_figure_is_svg_of_the_chosen_part() -> None:
    """One step, unless all are asked for; findings are numbered where that is asked for."""
    run = dptrace.open(TRACES / "interleaved_cpu_2ranks")
    one, every = dptrace.figure_svg(run), dptrace.figure_svg(run.select(ranks=[0]), every_step=True, width=1600)

    assert one.startswith("<svg")
    assert 1 == one.count(">step ")
    assert len(run.timelines[0].windows) == every.count(">step ")
    assert "rank 1" not in every
    assert len(dptrace.figure_svg(run, annotate=True)) > len(one)


def test_an_algorithm_is_explained() -> None:
    """As on the command line; an option of another name is refused."""
    shown = dptrace.explain("ring", 4, size_bytes=208e6, link="pcie4")

    assert (312e6,) * 4 == pytest.approx(shown.cost.sent_bytes)
    assert 5 == len({work.rank for step in dptrace.explain("gpipe", 5, micro_batches=2).steps for work in step.work})
    for name, options in (
        ("ring", {"stage": 1}),
        ("ring", {"speed": 1}),
        ("circle", {}),
        ("gpipe", {"micro_batches": 0}),
    ):
        with pytest.raises(dptrace.UsageError):
            dptrace.explain(name, 4, **options)  # type: ignore[arg-type]


def test_a_comparison_takes_runs() -> None:
    """The message for a path says how a run is opened; it does not take the path's letters for recordings."""
    run, path = Run("x", ()), TRACES / "naive_cpu_2ranks"

    for before, after in ((str(path), run), (run, path), ([run, path], run), (run, 3)):
        with pytest.raises(dptrace.UsageError, match=r"dptrace\.open"):
            dptrace.compare(before, after)  # type: ignore[arg-type]


def test_functions_take_runs() -> None:
    """The message for a path, or for anything else, says how a run is opened."""
    calls: list[Callable[[Any], object]] = [
        *(dptrace.figure, dptrace.figure_svg, dptrace.show, dptrace.critical_path, dptrace.whatif, dptrace.history),
        *(dptrace.advise, dptrace.hta_analysis),
        lambda run: dptrace.export_trace(run, "all.json"),
        lambda run: dptrace.save_baseline("all.json", run),
    ]
    for call in calls:
        for wrong in (str(TRACES / "naive_cpu_2ranks"), 3):
            with pytest.raises(dptrace.UsageError, match=r"dptrace\.open"):
                call(wrong)


@pytest.mark.heavy
def test_a_run_equals_itself_by_any_path() -> None:
    """A slash at the end of a path makes no other run."""
    path = TRACES / "naive_cpu_2ranks"
    run, same = (dptrace.open(text, figures_only=True) for text in (str(path), f"{path}/"))

    assert run == same
    assert hash(run) == hash(same)
    assert (
        dptrace.compare(run, same)
        == dptrace.compare(same, run)
        != dptrace.compare([run], dptrace.Run("x", run.timelines))
    )


def test_a_trace_is_exported_once(tmp_path: Path) -> None:
    """The suffix selects the format; an existing file is not overwritten unless force is given."""
    run = dptrace.open(TRACES / "interleaved_cpu_2ranks")
    target = tmp_path / "all.json"

    assert target == dptrace.export_trace(run, target)
    size = target.stat().st_size
    with pytest.raises(dptrace.UsageError, match=r"all\.json"):
        dptrace.export_trace(run, target)
    dptrace.export_trace(run, str(target), force=True)
    assert size == target.stat().st_size > 1000
    with pytest.raises(dptrace.UsageError):
        dptrace.export_trace(run, tmp_path / "all.txt")


@pytest.mark.heavy
def test_a_plan_is_one_line() -> None:
    """Memory, a predicted step and advice from Python are those of the command line; unknown words are refused."""
    held = dptrace.memory(params=7e9, gpus=8, strategy="zero3")
    step = dptrace.predict(params=7e9, gpus=8, strategy="fsdp", tokens=1e12)

    assert (112_000_000_000, True) == (held["model_state_bytes"], held["fits"])
    assert 1e12 / step["tokens_per_s"] / 86_400 == step["training_days"]
    advice = dptrace.advise(params=7e9, gpus=8, strategy="fsdp")
    assert step["per_gpu_bytes"] == advice["plan"]["per_gpu_bytes"]
    assert "" not in {question["note"] for question in advice["path"]}
    with pytest.raises(dptrace.UsageError, match="parameters"):
        dptrace.memory(parameters=7e9)


def test_a_message_is_one_line() -> None:
    """GPU workshop: 312 MB from each of four ranks of a ring, at 25 GB/s; a collective of one is refused."""
    found = dptrace.predict_message(208e6, gpus=4, link="5us:25GB/s")
    (ring,) = [row for row in found["all_reduce"] if row["algorithm"] == "ring"]

    assert 312e6 == ring["sent_bytes"]
    for wrong in ({"size_bytes": 208e6, "gpus": 1}, {"size_bytes": 0}, {"size_bytes": 1, "link": "wire"}):
        with pytest.raises(dptrace.UsageError):
            dptrace.predict_message(**wrong)


def test_what_is_no_path_is_refused() -> None:
    """With a sentence, not as a file of that name."""
    with pytest.raises(TypeError, match=r"takes paths.* not None"):
        dptrace.open(None)  # type: ignore[arg-type]
