"""The options that say when to record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dptrace.commands.record_options import attach, check_windows, window_settings
from dptrace.errors import UsageError

DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(("steps", "warmup", "wait", "duration", "every", "trigger")),
    **dict.fromkeys(("stop", "light", "memory", "modules", "shapes", "use_script_profiler"), False),
    "repeat": 1,
    "timeout": 1800.0,
}


def test_what_excludes_each_other_is_refused() -> None:
    """No option is accepted and ignored; the message names it."""
    for mode, given, says in (
        ("ddp", {"stop": True}, "--stop"),
        ("ddp", {"duration": 3.0}, "--duration"),
        ("ddp", {"repeat": 2, "every": 5}, "is for a script of your own"),
        (None, {"duration": 3.0, "steps": 5}, "--steps"),
        (None, {"trigger": "now", "wait": 5}, "--wait"),
        (None, {"trigger": "now", "repeat": 2}, "--repeat is not for --trigger"),
        (None, {"trigger": "now", "stop": True}, "--stop"),
        (None, {"repeat": 2}, "--every"),
        (None, {"repeat": 2, "every": 1}, "13 steps"),
        (None, {"trigger": "SIGUSR1"}, "SIGUSR2"),
        ("ddp", {"use_script_profiler": True}, "--use-script-profiler"),
        (None, {"use_script_profiler": True, "steps": 3}, "--steps"),
        (None, {"use_script_profiler": True, "light": True}, "--light"),
        (None, {"use_script_profiler": True, "memory": True}, "--memory"),
        (None, {"use_script_profiler": True, "modules": True}, "--modules"),
        (None, {"light": True, "modules": True}, "--modules"),
        (None, {"use_script_profiler": True, "shapes": True}, "--shapes"),
        (None, {"light": True, "shapes": True}, "--shapes"),
        (None, {"every": 20}, "--repeat"),
    ):
        with pytest.raises(UsageError, match=says):
            check_windows(mode, DEFAULTS | given)


def test_options_reach_the_launch() -> None:
    """Those that ranks need are part of the schedule; a timeout of 0 means none."""
    options = DEFAULTS | {
        "steps": 4,
        "repeat": 3,
        "every": 100,
        "stop": True,
        "light": True,
        "memory": True,
        "timeout": 0.0,
    }
    check_windows(None, options)
    settings = window_settings(options)

    assert {"steps": 4, "every": 100, "light": True, "memory": True} == {
        key: settings["schedule"][key] for key in ("steps", "every", "light", "memory")
    }
    assert (3, True, None, 0.0) == tuple(settings[key] for key in ("repeat", "stop", "trigger", "timeout_s"))


def test_attaching_needs_a_running_job(tmp_path: Path) -> None:
    """Without one, or with a script besides, it is refused."""
    with pytest.raises(UsageError, match="is running"):
        attach(str(tmp_path / "x"), None, ())
    with pytest.raises(UsageError, match="leave"):
        attach(str(tmp_path / "x"), None, ("train.py",))
