"""The command line of torchrun."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from dptrace.errors import UsageError
from dptrace.record.options.torchrun_command import parse_torchrun


@pytest.mark.parametrize(
    ("words", "processes", "settings"),
    [
        ("train.py", "1", {"nnodes": 1}),
        ("--nproc-per-node gpu --max-restarts 2 train.py", "gpu", {"nnodes": 1, "max_restarts": 2}),
        (
            "--nnodes 2 --node_rank 1 --rdzv-endpoint h:1 --rdzv-backend c10d train.py",
            "1",
            {"nnodes": 2, "node_rank": 1, "rdzv_endpoint": "h:1"},
        ),
        (
            "--nnodes 2:2 --node-rank 0 --master-addr h --master-port 7 train.py",
            "1",
            {"nnodes": 2, "node_rank": 0, "rdzv_endpoint": "h:7"},
        ),
        ("--nnodes 1 --master-port 7 --rdzv-id 3 train.py", "1", {"nnodes": 1}),
    ],
)
def test_options_become_those_of_dptrace(words: str, processes: str, settings: dict[str, Any]) -> None:
    """One process where torchrun starts one; addresses only where several machines need them."""
    found = parse_torchrun("torchrun", words.split())

    assert (processes, settings) == (found.processes, found.settings)


def test_what_dptrace_arranges_itself_is_reported() -> None:
    """It has no effect on one machine, and is not dropped silently."""
    words = ["--master-port", "7", "--rdzv_id", "3", "train.py"]

    assert ("--rdzv-id", "--master-port") == parse_torchrun("torchrun", words).needless
    assert () == parse_torchrun("torchrun", ["--standalone", "train.py"]).needless


def test_torchrun_gets_what_only_it_can_do() -> None:
    """They are passed on as they are."""
    words = ["--monitor_interval", "2", "--role", "actor", "--virtual-local-rank", "train.py"]

    assert ("--monitor-interval=2", "--role=actor", "--virtual-local-rank") == (
        parse_torchrun("torchrun", words).agent_options
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--log-dir logs train.py", "torchrun --log-dir: dptrace shows rank 0's output"),
        ("-t 3 train.py", "--tee"),
        ("--no-python ./train", "--no-python"),
        ("--rdzv-backend etcd train.py", "--rdzv-backend etcd"),
        ("--nnodes 1:2 train.py", "--nnodes 1:2"),
        ("--nnodes 2 --standalone train.py", "--standalone is for one machine"),
        ("--max-restarts few train.py", "--max-restarts few: give a number"),
        ("--no-such-option train.py", "unrecognized arguments: --no-such-option"),
        ("--nproc-per-node 2", "script"),
    ],
)
def test_what_would_be_ignored_is_refused(words: str, says: str) -> None:
    """With a sentence that names the option."""
    with pytest.raises(UsageError) as refused:
        parse_torchrun("torchrun", words.split())

    assert says in str(refused.value)


def test_defaults_come_from_torchruns_own_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchrun reads PET_NPROC_PER_NODE; an option takes precedence."""
    monkeypatch.setenv("PET_NPROC_PER_NODE", "3")

    assert "3" == parse_torchrun("torchrun", ["train.py"]).processes
    assert "2" == parse_torchrun("torchrun", ["--nproc-per-node", "2", "train.py"]).processes


def test_every_option_of_the_installed_torchrun_is_known() -> None:
    """None is taken for a script's, or refused as unknown."""
    run = pytest.importorskip("torch.distributed.run")
    for action in run.get_args_parser()._actions:
        if not action.option_strings or action.dest == "help":
            continue
        value = [] if action.nargs == 0 or isinstance(action, argparse._StoreTrueAction) else ["1"]
        for name in action.option_strings:
            try:
                parse_torchrun("torchrun", [name, *value, "train.py"])
            except UsageError as refused:
                assert "unrecognized" not in str(refused), name
