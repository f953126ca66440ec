"""``srun dptrace record``: which task this process is, and what ``--nnodes`` and the like are for it.

One task per machine starts all ranks of its machine. With more tasks than machines, each task starts one rank: it may
see only its own GPU (``--gpus-per-task=1``) and only its own cores, so no task can start the ranks of the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from dptrace.errors import UsageError

__all__ = ["SlurmTask", "expand_host_list", "slurm_task"]

_FIRST_SPECIAL_STEP = 0xFFFF_FF00
"""Steps from this number on are Slurm's own: the batch script, the shell of ``salloc``."""
_FIRST_PORT, _PORTS = 20_000, 12_000
"""Below the ports that Linux gives to outgoing connections, which begin at 32768."""


@dataclass(frozen=True, slots=True)
class SlurmTask:
    """One task of a step that ``srun`` started, with more than one task."""

    job: int
    step: int
    machines: int
    machine: int
    """Number of this task's machine in the step, from 0."""
    tasks: int
    task: int
    local_tasks: int
    """Tasks on this machine."""
    local_task: int
    first_machine: str

    @property
    def starts_one_rank(self) -> bool:
        """Whether this task is one rank of several on its machine."""
        return self.tasks > self.machines

    @property
    def launchers(self) -> int:
        """How many processes start ranks; they are to torchrun what machines are."""
        return self.tasks if self.starts_one_rank else self.machines

    @property
    def launcher(self) -> int:
        """Number of this process among the launchers, from 0."""
        return self.task if self.starts_one_rank else self.machine

    @property
    def endpoint(self) -> str:
        """The address at which the first launcher listens; jobs and steps that share a machine have ports apart."""
        host = "127.0.0.1" if self.machines == 1 else self.first_machine
        return f"{host}:{_FIRST_PORT + (self.job + 37 * self.step) % _PORTS}"

    @property
    def suffix(self) -> str:
        """What distinguishes this step's run from those of other jobs, for the default name of its folder."""
        return f"-{self.job}" + (f".{self.step}" if self.step else "")


def slurm_task(environment: Mapping[str, str], on_terminal: bool = False) -> SlurmTask | None:
    """Return which of several tasks of ``srun`` this process is; None if ``srun`` did not start it, or it alone.

    Args:
        on_terminal: whether a person types here: then it is the shell of ``srun --pty``, and its other tasks are idle.

    Raises:
        UsageError: a variable is not what Slurm sets.
    """
    if not {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID"} <= environment.keys():
        return None
    if on_terminal and "SLURM_PTY_PORT" in environment:
        return None
    step = _number(environment, "SLURM_STEP_ID")
    tasks = _number(environment, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
    if step >= _FIRST_SPECIAL_STEP or tasks < 2:
        return None
    machines = _number(environment, "SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
    machine, task = _number(environment, "SLURM_NODEID"), _number(environment, "SLURM_PROCID")
    counts = _first_of(environment, "SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE")
    per_machine = _tasks_per_machine(counts) if counts else []
    names = _first_of(environment, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    if machines > 1 and not names:
        raise UsageError("srun set no SLURM_STEP_NODELIST; give --nnodes, --node-rank and --rdzv-endpoint yourself.")
    return SlurmTask(
        job=_number(environment, "SLURM_JOB_ID"),
        step=step,
        machines=machines,
        machine=machine,
        tasks=tasks,
        task=task,
        local_tasks=per_machine[machine] if machine < len(per_machine) else -(-tasks // machines),
        local_task=_number(environment, "SLURM_LOCALID"),
        first_machine=expand_host_list(names)[0] if names else "127.0.0.1",
    )


def _first_of(environment: Mapping[str, str], *names: str) -> str:
    return next((environment[name] for name in names if environment.get(name)), "")


def _number(environment: Mapping[str, str], *names: str) -> int:
    text = _first_of(environment, *names)
    if not re.fullmatch(r"\d{1,18}", text):
        raise UsageError(
            f"srun should have set {names[0]} to a number, not {text!r}; give --nnodes, --node-rank and "
            "--rdzv-endpoint yourself."
        )
    return int(text)


def _tasks_per_machine(text: str) -> list[int]:
    """Return the tasks of each machine; ``2(x3),1`` means 2, 2, 2, 1."""
    counts: list[int] = []
    for tasks, times in re.findall(r"(\d{1,6})(?:\(x(\d{1,6})\))?", text):
        counts += [int(tasks)] * int(times or 1)
    return counts


def expand_host_list(text: str) -> list[str]:
    """Return the names in Slurm's short form: ``gpu[01-03,07],login`` is gpu01, gpu02, gpu03, gpu07 and login.

    Raises:
        UsageError: the text has no such form.
    """
    # A comma inside brackets does not end a name.
    entries = re.findall(r"(?:\[[^\[\]]*\]|[^,\[\]])+", text)
    names = [name for entry in entries for name in _expand(entry)]
    if not names or ",".join(entries) != text:
        raise UsageError(f"{text!r} is not a list of machines as Slurm writes it; give --rdzv-endpoint yourself.")
    return names


def _expand(entry: str) -> Iterator[str]:
    """Yield the names of one entry; several brackets are combined, the last one varying fastest."""
    before, bracket, rest = entry.partition("[")
    if not bracket:
        yield before
        return
    inside, _, after = rest.partition("]")
    for part in inside.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part)
        if match is None:
            raise UsageError(f"{entry!r} is not a list of machines as Slurm writes it; give --rdzv-endpoint yourself.")
        first, last = match[1], match[2] or match[1]
        for number in range(int(first), int(last) + 1):
            for end in _expand(after):
                yield f"{before}{number:0{len(first)}}{end}"
