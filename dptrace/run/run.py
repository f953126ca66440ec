"""A run: all ranks that were recorded together, and its figures as tables."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from dptrace.analysis.per_gpu.device import DeviceFigures, figures_of
from dptrace.analysis.per_gpu.idle import CAUSES
from dptrace.analysis.per_gpu.split import FIGURES, Split, overlap_percent
from dptrace.errors import DptraceError
from dptrace.timeline.model import Phase, Timeline

if TYPE_CHECKING:
    import pandas as pd

    from dptrace.analysis.cross_rank.pipeline_bubble import Pipeline
    from dptrace.comparison.compare import Comparison
    from dptrace.run.cross_rank import Together
    from dptrace.viewers.pages.notebook import Shown

__all__ = ["SCHEMA", "Run"]

SCHEMA = 1
"""Version of the JSON that :meth:`Run.to_dict` gives: names in it never change meaning."""


@dataclass(frozen=True)
class Run:
    """What was recorded of one job: a timeline per GPU, sorted by rank and device."""

    path: str
    """As the user named it."""
    timelines: tuple[Timeline, ...]
    info: dict[str, Any] = field(default_factory=dict)
    """The contents of ``run.json``; empty for traces that dptrace did not record."""
    notes: tuple[str, ...] = ()
    """What was missing, dropped or repaired, a sentence each; to be shown with every figure."""
    world_size: int = 0
    """How many ranks the job had, as far as the files say; more than here where files are missing."""
    devices: tuple[DeviceFigures, ...] = field(default=(), repr=False)
    """Each timeline with its figures, in the same order; computed when they are not given."""
    figures_only: bool = False
    """Whether the timelines hold communication alone, the figures being those of the whole."""
    sources: Any = field(default=None, repr=False, compare=False)
    """Where the files lie that the run was read from, as ``discovery.find`` gives them; nothing for a run
    that was made otherwise."""

    def __post_init__(self) -> None:
        if not self.devices:
            object.__setattr__(self, "devices", tuple(map(figures_of, self.timelines)))

    @property
    def splits(self) -> tuple[Split, ...]:
        """Give the split of each timeline, in the same order."""
        return tuple(device.split for device in self.devices)

    @property
    def on_cpu(self) -> bool:
        """Tell whether the run shows operators on CPUs, not kernels on GPUs."""
        return all(timeline.on_cpu for timeline in self.timelines)

    def steps(self) -> pd.DataFrame:
        """Give the nine figures, in ns, a row for each rank, device and step."""
        import pandas as pd

        rows = [
            {"rank": s.rank, "device": t.device, "step": name, **{f: int(v[k]) for f, v in s.figures.items()}}
            for s, t in zip(self.splits, self.timelines, strict=True)
            for k, name in enumerate(s.names)
        ]
        return pd.DataFrame(rows, columns=["rank", "device", "step", *FIGURES])

    def totals(self) -> pd.DataFrame:
        """Give the nine figures, in ns, over all steps, and the overlap in percent: a row for each GPU."""
        import pandas as pd

        rows = []
        for s in self.splits:
            total = s.total()
            overlap = overlap_percent(total["overlapped_comm_ns"], total["exposed_comm_ns"])
            rows.append({"rank": s.rank, "device": s.device, **total, "overlap_percent": overlap})
        return pd.DataFrame(rows, columns=["rank", "device", *FIGURES, "overlap_percent"])

    def idle(self) -> pd.DataFrame:
        """Give why each GPU was idle, in ns by cause: a row per rank, device and step; they add up."""
        import pandas as pd

        rows = [
            {"rank": d.split.rank, "device": d.timeline.device, "step": name}
            | {cause: int(values[k]) for cause, values in d.idle_causes.items()}
            | {"idle_ns": int(d.split.figures["idle_ns"][k])}
            for d in self.devices
            for k, name in enumerate(d.split.names)
        ]
        return pd.DataFrame(rows, columns=["rank", "device", "step", *CAUSES, "idle_ns"])

    def recompute_percent(self) -> float | None:
        """Give the share of backward that is forward computed again, in percent; nothing without any of it.

        Checkpointed activations cost that; it is a lower bound, see docs/how-it-works.md.
        """
        again = sum(int(device.recompute_ns.sum()) for device in self.devices)
        backward = sum(int(device.split.figures["backward_ns"].sum()) for device in self.devices)
        return 100 * again / backward if again and backward else None

    def collectives(self) -> pd.DataFrame:
        """Give every collective on every GPU, a row each: kind, bytes, group, times, exposed and overlapped ns."""
        import pandas as pd

        rows = [row for device in self.devices for row in _collective_rows(device)]
        return pd.DataFrame(rows, columns=list(_COLLECTIVE_COLUMNS))

    def intervals(self) -> pd.DataFrame:
        """Give every interval of every GPU, a row each: name, kind, phase, step, lane, start and end in ns.

        Raises:
            DptraceError: the run was opened for its figures only.
        """
        import pandas as pd

        if self.figures_only:
            raise DptraceError(f"{self.path}: was opened for its figures only; open it without figures_only.")

        return pd.concat([_interval_frame(timeline) for timeline in self.timelines], ignore_index=True)

    @cached_property
    def pipelines(self) -> tuple[Pipeline, ...]:
        """Give the pipelines that the ranks form, with their schedules' bubbles; none in most runs."""
        return self._pipelines(self.together) if any(len(t.actions) for t in self.timelines) else ()

    def _pipelines(self, together: Together) -> tuple[Pipeline, ...]:
        from dptrace.analysis.cross_rank.pipeline_bubble import pipelines

        return pipelines(self.devices, together.clocks)

    def _told(self, together: Together) -> list[dict[str, Any]]:
        from dptrace.analysis.cross_rank.pipeline_bubble import to_dict

        return [to_dict(pipeline, self.timelines) for pipeline in self._pipelines(together)]

    def pipeline(self) -> pd.DataFrame:
        """Give what each rank computed of its pipeline's schedule, and the bubble: a row per rank and step."""
        import pandas as pd

        from dptrace.analysis.cross_rank.pipeline_bubble import COLUMNS, rows

        return pd.DataFrame(rows(self.pipelines, self.timelines), columns=list(COLUMNS))

    def actions(self) -> pd.DataFrame:
        """Give every stage's forward and backward of each micro-batch, a row each, in the order of their starts."""
        import pandas as pd

        from dptrace.analysis.cross_rank.pipeline_bubble import ACTION_COLUMNS, action_rows

        return pd.DataFrame(action_rows(self.pipelines, self.timelines), columns=list(ACTION_COLUMNS))

    @cached_property
    def together(self) -> Together:
        """Give the ranks side by side: collectives matched, clocks compared, stragglers and findings."""
        return self.beside()

    def beside(self, align: bool = True) -> Together:
        """Compute :attr:`together`, with the ranks' clocks as they are unless *align*."""
        from dptrace.run.cross_rank import together

        return together(self.devices, self.world_size, self.info, align)

    def matches(self) -> pd.DataFrame:
        """Give every collective across ranks, a row for each of its ranks: wait, transfer, lateness, bandwidth."""
        import pandas as pd

        rows = [
            {"collective": number, **{name: row[name] for name in _ACROSS}, **member}
            for number, row in enumerate(self.together.collectives())
            for member in row["members"]
        ]
        return pd.DataFrame(rows)

    def clocks(self) -> pd.DataFrame:
        """Give each rank's clock against the first's: offset, drift, uncertainty."""
        import pandas as pd

        return pd.DataFrame(self.together.clock_rows())

    def stragglers(self) -> pd.DataFrame:
        """Give each collective at which a rank kept the others waiting: who, by how much, the cost, and why."""
        import pandas as pd

        return pd.DataFrame(self.together.straggler_rows())

    def findings(self) -> pd.DataFrame:
        """Give what matters most, the dearest first: kind, text, advice, cost in ns of a step, share, evidence."""
        import pandas as pd

        return pd.DataFrame([finding.to_dict() for finding in self.together.findings])

    def diff(self, other: Run) -> Comparison:
        """Compare with another run: what moved from this one to that, and whether it is beyond noise."""
        from dptrace.comparison.compare import compare

        return compare(self, other)

    def view(self, name: str = "gantt", height: int = 640) -> Shown:
        """Show the run in a notebook, as ``dptrace view`` shows it in a browser; ``save(path)`` writes the page.

        Args:
            name: one of the views that ``dptrace view --view list`` lists.
            height: of the frame in the notebook, in pixels.

        Raises:
            UsageError: there is no view of that name.
            DptraceError: there is nothing to draw, or too much for a page.
        """
        from dptrace.viewers.pages.notebook import show

        return show(self, name, height)

    def hta(self, include_last_profiler_step: bool = False) -> Any:
        """Give Holistic Trace Analysis's ``TraceAnalysis`` of the run's files, with all its methods; see docs/hta.md.

        Args:
            include_last_profiler_step: HTA leaves the last step out, unless told not to.

        Raises:
            MissingExtraError: HTA is not installed.
            DptraceError: the run was not read from files, or one of them is no longer as it was.
        """
        from dptrace.hta.trace_analysis import hta_of

        return hta_of(self, include_last_profiler_step)

    def to_dict(self, align: bool = True) -> dict[str, Any]:
        """Give the figures as plain data, the way ``dptrace analyze --json`` prints them.

        Args:
            align: whether clocks that are off are corrected before ranks are compared.
        """
        together = self.together if align else self.beside(align=False)
        return {
            "schema": SCHEMA,
            "run": self.path,
            "world_size": self.world_size,
            "ranks": [_rank_dict(device) for device in self.devices],
            "notes": [*self.notes, *together.notes],
            **({"pipelines": self._told(together)} if any(len(t.actions) for t in self.timelines) else {}),
            **together.to_dict(),
        }


_COLLECTIVE_COLUMNS = (
    *("rank", "device", "step", "kind", "bytes", "dtype", "group", "group_size", "seq", "phase"),
    *("start_ns", "end_ns", "exposed_ns", "overlapped_ns", "name", "label"),
)


_ACROSS = (
    *("kind", "name", "group", "seq", "bytes", "dtype", "step", "phase", "complete"),
    *("transfer_ns", "algbw_gbps", "busbw_gbps", "last_rank"),
)
"""What stands in each row of a collective's ranks, of what holds for all of them."""


def _step_name(timeline: Timeline, step: int) -> str | None:
    return timeline.windows.names[step] if step >= 0 else None


def _collective_rows(device: DeviceFigures) -> list[dict[str, Any]]:
    timeline, exposed, overlapped = device.timeline, device.exposed_ns, device.overlapped_ns
    rows = []
    for i in np.flatnonzero(timeline.collective >= 0):
        comm = timeline.collectives[timeline.collective[i]]
        values = (
            *(timeline.rank, timeline.device, _step_name(timeline, int(timeline.step[i])), comm.kind, comm.bytes),
            *(comm.dtype, comm.group, comm.group_size, comm.seq, Phase(timeline.phase[i]).name.lower()),
            *(int(timeline.start_ns[i]), int(timeline.end_ns[i]), int(exposed[i]), int(overlapped[i])),
            *(timeline.names[timeline.name[i]], comm.label),
        )
        rows.append(dict(zip(_COLLECTIVE_COLUMNS, values, strict=True)))
    return rows


def _interval_frame(timeline: Timeline) -> pd.DataFrame:
    import pandas as pd

    kinds = np.array(["compute", "communication", "memory"], object)
    phases = np.array([phase.name.lower() for phase in Phase], object)
    names = np.array([*timeline.names, ""], object)
    steps = np.array([*timeline.windows.names, None, None], object)
    return pd.DataFrame(
        {
            "rank": timeline.rank,
            "device": timeline.device,
            "name": names[timeline.name],
            "kind": kinds[timeline.kind],
            "phase": phases[timeline.phase],
            "step": steps[timeline.step],
            "lane": timeline.lane,
            "start_ns": timeline.start_ns,
            "end_ns": timeline.end_ns,
        }
    )


def _rank_dict(device: DeviceFigures) -> dict[str, Any]:
    timeline, figures = device.timeline, device.split
    steps = []
    for k, name in enumerate(figures.names):
        comm = {
            kind: {
                "count": int(c.count[k]),
                "bytes": int(c.bytes[k]),
                "exposed_ns": int(c.exposed_ns[k]),
                "overlapped_ns": int(c.overlapped_ns[k]),
            }
            for kind, c in figures.comm.items()
        }
        nine = {f: int(v[k]) for f, v in figures.figures.items()}
        idle = {cause: int(values[k]) for cause, values in device.idle_causes.items()}
        again = int(device.recompute_ns[k])
        steps.append({"step": name, **nine, "comm": comm, "idle": idle, "recompute_ns": again})
    total = figures.total()
    return {
        "rank": timeline.rank,
        "device": timeline.device_name,
        "device_index": timeline.device,
        "file": timeline.path,
        "steps": steps,
        "total": total,
        "overlap_percent": overlap_percent(total["overlapped_comm_ns"], total["exposed_comm_ns"]),
        "collectives": [
            {key: value for key, value in row.items() if key not in ("rank", "device")}
            for row in _collective_rows(device)
        ],
    }
