"""The declaration of the trainers' options."""

from __future__ import annotations

from typing import get_type_hints

import pytest

from dptrace.errors import UsageError
from dptrace.record.options.catalog import OPTIONS, Schedule, TrainerOptions, check_model, parse_options
from dptrace.record.options.modes import FAMILIES, MODES, trainer


def test_every_attribute_is_an_option_with_its_annotated_type() -> None:
    """No attribute lacks a declaration, and a default is of the type that the annotation promises."""
    hints = get_type_hints(TrainerOptions)

    assert list(hints) == [option.field for option in OPTIONS]
    assert all(option.default is None or isinstance(option.default, hints[option.field]) for option in OPTIONS)


def test_the_options_of_a_mode_follow_from_its_traits() -> None:
    """Each trait that an option names belongs to some mode; a few combinations as examples."""
    modes = {option.name: option.modes for option in OPTIONS}

    assert all(set(found) <= set(MODES) for found in modes.values())
    assert all(option.modes for option in OPTIONS if option.trait is not None)
    assert ("ddp", "accumulate") == modes["bucket-cap-mb"]
    assert ("hierarchical", "hsdp") == modes["ranks-per-node"]
    assert ("accumulate", "pp", "3d", "4d") == modes["micro-batches"]
    assert () == modes["lr"]


# A trainer's command line and the schedule of its recording.


@pytest.mark.parametrize(
    ("steps", "warmup", "wait", "says"),
    [(0, 3, None, "--steps 0"), (1, 1, None, "rebuilds its buckets"), (1, 2, -1, "--wait -1")],
)
def test_a_schedule_that_makes_no_sense_is_refused(steps: int, warmup: int, wait: int | None, says: str) -> None:
    """The message names the option, and for the warm-up the reason."""
    with pytest.raises(UsageError, match=says):
        Schedule.of(steps, warmup, wait)


def test_a_trainer_takes_the_common_options_and_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """ddp takes --bucket-cap-mb, naive does not."""
    assert 4.0 == parse_options("", "ddp", ["--bucket-cap-mb", "4"]).bucket_cap_mb
    assert parse_options("", "naive", []).steps == 10
    with pytest.raises(SystemExit) as refused:
        parse_options("", "naive", ["--bucket-cap-mb", "4"])
    assert 2 == refused.value.code
    assert "--bucket-cap-mb" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse_options("", "ddp", ["--bucket-cap-mb", "0"])


@pytest.mark.parametrize(
    ("mode", "model"),
    [("pp", "balanced"), ("3d", "balanced"), ("dp-tp", "medium"), ("4d", "gpt-tiny"), ("ddp", "medium")],
)
def test_stages_are_equal_by_default(mode: str, model: str) -> None:
    """A mode that cuts a model into stages trains equal blocks, if it can train them."""
    assert model == parse_options("", mode, []).model


def test_a_mode_refuses_a_model_that_it_cannot_train() -> None:
    """The message lists the models that it can train."""
    check_model("ddp", "small")
    with pytest.raises(UsageError, match="ddp trains small, medium"):
        check_model("ddp", "huge")


@pytest.mark.parametrize(
    "compression", ["fp16", "bf16", "powersgd", "topk", "randomk", "threshold", "int8", "int4", "qsgd"]
)
def test_only_compression_that_keeps_something_refuses_checkpoints(compression: str) -> None:
    """The checkpoint of one rank is complete, unless each rank keeps what its messages left out.

    A training continues only with the compression that it began with.
    """
    arguments = ["--compress", compression, "--checkpoint-every", "2"]
    if compression in ("fp16", "bf16"):
        assert compression == parse_options("", "ddp", arguments).checkpoint_settings["compress"]
    else:
        with pytest.raises(UsageError, match=f"--compress {compression} .*checkpoints"):
            parse_options("", "ddp", arguments)
    assert "compress" not in parse_options("", "ddp", []).checkpoint_settings


@pytest.mark.parametrize("mode", MODES)
def test_every_option_of_a_mode_has_its_help(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The trainer's own --help lists every option that dptrace record passes on to it."""
    with pytest.raises(SystemExit):
        parse_options("", mode, ["--help"])
    text = capsys.readouterr().out
    assert all(f"--{option.name}" in text for option in OPTIONS if not option.modes or mode in option.modes)


def test_what_run_json_gets_leaves_out_what_it_has_elsewhere() -> None:
    """Folder and schedule have their own keys in run.json; the arguments are those of record()."""
    recording = parse_options("", "single", ["--steps", "7", "--out", "x"]).record_arguments

    assert (7, "x", False) == (recording["steps"], recording["out"], recording["force"])
    assert {"model", "batch_size", "dtype", "lr", "seed", "optimizer"} <= set(recording["options"])
    assert not {"out", "steps", "force", "save_parameters"} & set(recording["options"])


def test_a_flag_that_is_on_by_default_can_be_switched_off() -> None:
    """--no-broadcast-buffers, and the same flag without no."""
    chosen = [parse_options("", "ddp", words).broadcast_buffers for words in ([], ["--no-broadcast-buffers"])]

    assert [True, False] == chosen
    assert parse_options("", "accumulate", ["--broadcast-buffers"]).run_options["broadcast_buffers"]


# The table of modes.


def test_each_mode_is_a_file_that_says_its_idea() -> None:
    """A mode has a trainer, whose docstring contains the two commands that start it."""
    for mode in MODES:
        text = trainer(mode).read_text(encoding="utf-8")
        assert {True} == {f"dptrace record --mode {mode}" in text, trainer(mode).name in text}, mode


def test_an_unknown_mode_lists_the_known() -> None:
    """The message lists every mode with its description."""
    with pytest.raises(UsageError) as error:
        trainer("naiv")

    assert all(f"{mode}" in str(error.value) and known.description in str(error.value) for mode, known in MODES.items())


def test_newcomers_see_the_four_first() -> None:
    """The first family holds the four basic modes, and every mode is in a family."""
    assert ["single", "naive", "interleaved", "ddp"] == [name for name, mode in MODES.items() if mode.family == "first"]
    assert {mode.family for mode in MODES.values()} <= set(FAMILIES)
