"""What each verb prints with --json, as shapes that :mod:`dptrace.commands.schema` turns into JSON schemas.

Tables have the columns of :mod:`dptrace.run.columns`, rows of dataclasses their fields. docs/reference/json.md says
what a key means; tests hold each shape against real answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_type_hints

from dptrace.analysis.per_gpu.split import FIGURES
from dptrace.bench.sweep_points import Point
from dptrace.bench.table import Row
from dptrace.core.table import Column
from dptrace.doctor.environment import Report
from dptrace.doctor.selftest import SelfTest
from dptrace.flight.hang import Fault
from dptrace.replay.paths import LINK_KINDS
from dptrace.run import columns

Shape = dict[Any, Any]


def _of(table: Sequence[Column], without: str = "") -> Shape:
    """Return the columns of a table by their names."""
    return {column.name: column for column in table if column.name not in without.split()}


# One line for what belongs together.
# fmt: off

_FIGURES = " ".join(FIGURES)
_OTHERS = " ".join(name for name in FIGURES if name != "wall_ns")
_UNSURE = f"{_OTHERS} compute_ns"
"""The figures that may be unknown."""
_LIMITS = {"unknown bounds": {str: str}}
_FINDING = _of(columns.FINDINGS)
_STEP_AND_TIME = {"step": str, "wall_ns": float}
_NO_PLACE = "rank device"

# analyze

_WAITS = {"exposed_wait_ns": int | None, "exposed_unmatched_ns": int}
_OF_KIND = {"count": int, "bytes": int | None, "exposed_ns overlapped_ns": int | None, **_WAITS}
_IN_FLIGHT = {"micro_batches": int, "expected_micro_batches bytes": int | None}
_STEP = {
    **_of(columns.STEPS, _NO_PLACE), "comm": {str: _OF_KIND}, "recompute_ns": int | None,
    "idle": _of(columns.IDLE, f"{_NO_PLACE} step idle_ns"),
}
_RANK = {
    "rank device_index": int, "device file": str, "steps": [_STEP], "total": _of(columns.STEPS, f"{_NO_PLACE} step"),
    "node?": str, "coordinates?": {str: int}, "in_flight?": _IN_FLIGHT, "overlap_percent": float | None, **_LIMITS,
    "collectives": [_of(columns.CALLS, _NO_PLACE)],
}
_PIPELINE_STEP = {
    "step": str, "span_ns": int, "bubble_percent": float,
    "ranks": [{"rank device busy_ns own_span_ns": int, "bubble_percent": float}],
}
_PIPELINE = {
    "ranks": [{"rank device": int, "stages": [int]}], "schedule": str, "micro_batches virtual_stages": int,
    "labeled": bool, "bubble_percent formula_percent": float | None, "steps": [_PIPELINE_STEP],
}
_UTILIZATION = {
    "mfu hfu tflops samples_per_s tokens_per_s peak_tflops": float | None, "source gpu dtype note": str | None,
    "steps": [_of(columns.UTILIZATION)],
}
_LATENCY = {
    "kind": str, "name group phase": str | None, "bytes": int | None, "count p0_ns p50_ns p90_ns p100_ns": int,
    "histogram": {"counts edges_ns": [int]}, "slow": [int],
}
_ALPHA_BETA = {
    "kind": str, "ranks count": int, "alpha_ns beta_ns_per_byte crossover_bytes r2": float | None,
    "group reason": str | None,
}
_RANK_MEMORY = {
    "rank device events baseline_bytes freed_before_recording_bytes unallocated_bytes out_of_memory": int,
    "counts_from_recording": bool,
    "peak": {"bytes reserved_bytes": int, "at_ns": int | None, "step phase": str | None},
    "steps": [_of(columns.MEMORY_PEAKS, _NO_PLACE)], "kinds operators modules": [_of(columns.MEMORY_USE, _NO_PLACE)],
    "blocks": [_of(columns.BLOCKS, _NO_PLACE)], "allocator_calls": [_of(columns.ALLOCATOR_CALLS, "rank")],
}
_MEAN_STEP = {
    "steps median_wall_ns wall_ns": int, _UNSURE: int | None, **_WAITS, **_LIMITS, "waits_for": [int],
    "steps_apart": [_STEP_AND_TIME],
}
_MATCHED = {
    **_of(columns.MATCHED), "group_description": str | None, "group_ranks": [int], "members": [_of(columns.MEMBERS)],
}
_ANALYSIS = {
    "schema": 2, "run": str, "world_size": int, "windows": [[str]], "mean_step": (_MEAN_STEP, None), "ranks": [_RANK],
    "notes": [str],
    "pipelines?": [_PIPELINE], "utilization?": _UTILIZATION, "collectives": [_MATCHED],
    "unmatched": [{"rank device count": int}], "clocks": [_of(columns.CLOCKS)],
    "stragglers": [_of(columns.STRAGGLERS)], "latencies": [_LATENCY], "alpha_beta": [_ALPHA_BETA],
    "findings": [_FINDING], "memory?": [_RANK_MEMORY],
}
_HTA_COMPAT = {"schema": 1, "hta": str, "rounded": bool, "ranks": [{str: object}], "notes": [str]}

# kernels

_KERNEL_FIGURES = {
    **_of(columns.KERNELS, "kernel kind name max_over_median slowest_rank"), "rank?": int,
    "max_over_median?": float | None, "slowest_rank?": int | None,
}
_OPERATOR_AND_SHAPE = {
    "operator dtype": str, "outermost_operator": str | None, "input_dims": [[(int, [int])]], "input_types": [str],
    "flops bytes counted_flops model_flops": float | None, "bound formula": str | None, "flops_exact": bool | None,
    "tflops gbps flops_per_byte peak_tflops share_of_peak share_of_bandwidth share_of_roofline": float | None,
}
_KERNEL_ROWS: tuple[Shape, ...] = (
    {"kernel kind name": str}, {"operator phase": str, "forward_operator outermost_operator": str | None},
    _OPERATOR_AND_SHAPE, {"module": str}, {"layer": str}, {"source code fx_nodes module": str}, {"annotation": str},
    {"phase": str},
)
_KERNELS_HEAD = {"schema": 2, "run": str, "ranks": [int], "notes": [str]}
_KERNELS = {
    **_KERNELS_HEAD, "by kind": str, "wall_ns": int, "totals": {str: {"total_ns busy_ns": int}},
    "flops?": {"model hardware covered": float, "dtype": str, "tflops mfu hfu peak_tflops": float | None},
    "findings?": [_FINDING], "rows": [tuple({**names, **_KERNEL_FIGURES} for names in _KERNEL_ROWS)],
}
_LAUNCH = {
    "rank launches": int, "graph_kernels synchronizing_calls synchronizing_ns": int | None,
    "delay_p50_ns delay_p95_ns queue_depth_p50 queue_depth_p95 empty_queue_share graph_share": float | None,
}
_HOST = {**_KERNELS_HEAD, "by": "host", "launch": [_LAUNCH], "rows": [{"rank?": int, **_of(columns.LAUNCHES)}]}

# diff


def _change(unit: str, number: type) -> Shape:
    return {
        f"a_{unit} b_{unit} delta_{unit} a_median_{unit} b_median_{unit}": number,
        "p": float | None,
        "verdict": str,
        f"a_step_spread_{unit} b_step_spread_{unit} a_rank_spread_{unit} b_rank_spread_{unit}": number | None,
        f"low_{unit} high_{unit} detectable_{unit}": number | None,
    }


def _sides(words: str, number: Any, verdict: Any) -> Shape:
    times = " ".join(f"{side}_{word}_ns" for word in words.split() for side in ("a", "b", "delta"))
    return {times: number, " ".join(f"{word}_verdict" for word in words.split()): verdict}


_TIME_CHANGE = {**_change("ns", int), "delta_percent": float | None}
_FIGURE_CHANGE = {"figure": str, **_TIME_CHANGE}
_COUNTS = {"a_count b_count": float, "only_in": str | None}
_SIDE = {
    "run device": str, "world_size": int, "ranks": [int], "mode model": str | None, "steps notes": [str],
    "left_out": [_STEP_AND_TIME],
}
_COLLECTIVE_CHANGE = {
    "kind": str, "group dtype": str | None, "group_size bytes": int | None,
    "a_bytes_per_step b_bytes_per_step": float | None,
    **_sides("exposed overlapped duration", int, str), **_sides("transfer wait", int | None, str | None), **_COUNTS,
}
_DIFF = {
    "schema": 1, "summary": str, "a b": _SIDE, "before after": [_SIDE], "differs notes": [str],
    "figures wait_and_transfer": [_FIGURE_CHANGE], "overlap mfu": (_change("percent", float), None),
    "kinds": [{"kind": str, "a_steps b_steps": int, "figures": [_FIGURE_CHANGE]}],
    "ranks": [{"rank gpu": int, **_FIGURE_CHANGE}], "collectives": [_COLLECTIVE_CHANGE],
    "kernels": [{"name kind": str, **_TIME_CHANGE, **_COUNTS}],
    "limits": [{
        "limit text": str, "checked decided crossed failed": bool, "detectable": float | None, "needed": int | None,
    }],
}

# baseline, history

_BASELINE = {"name path saved": str, "in_use": bool, "recordings steps ranks wall_ns bytes": int}
_RUN_IN_TIME = {
    "run recorded recorded_by": str, "ranks steps wall_ns": int, f"{_OTHERS} step_spread_ns": int | None,
    "overlap_percent mfu exposed_share waiting_share no_compute_share over_usual lost_share": float | None,
    "culprit": ({"ranks": [int], "waited_ns": int | None}, None),
}
_CHANGE_POINT = {
    "run": str, "index": int, "differs": [str],
    "figures": [{"figure": str, "before_ns after_ns": int, "p": float | None}],
}
_SERIES = {"series": str, "runs": [_RUN_IN_TIME], "changes": [_CHANGE_POINT]}

# log

_METRICS = {
    "dptrace/wall_ms": float, "dptrace/overlap_percent?": float,
    " ".join(f"dptrace/{name.removesuffix('_ns')}_ms?" for name in FIGURES if name != "wall_ns"): float,
}
_LOGGED = {
    "schema": 1, "to where": str, "steps": [{"step": int, **_METRICS}],
    "mean": {**_METRICS, "dptrace/mfu_percent?": float},
}

# flight

_RANK_IN_HANG = {
    "rank": int, "file": str, "group operator state line": str | None, "number created_ns": int | None,
    "input_sizes output_sizes": ([[int]], None), "dtypes": ([str], None),
    "stack": [{"function file": str, "line": int | None}],
}
_RANK_OF_NCCL = {"rank": int, "group place": str, "counts": {str: int}}
_FLIGHT = {
    "schema": 1, "kind": "flight", "source verdict": str, "next notes": [str], "culprits": [int], "faults": [Fault],
    "ranks": [(_RANK_IN_HANG, _RANK_OF_NCCL)],
}

# whatif, critical-path

_BY_KIND = {" ".join(LINK_KINDS): int}
_LENGTHS = "measured_step_ns replayed_step_ns predicted_step_ns"
_PIECE = {"name operator": str | None, "rank": int | None}
_WHATIF = {
    "schema": 1, "run": str, "changes steps notes": [str], "can_tell all_ranks": bool,
    "replayed_ranks": [int], "apart_ns": int | None,
    f"{_LENGTHS} micro_steps predicted_ns_per_micro_step host_alone_ns device_alone_ns": int,
    "low_ns high_ns run_gain_ns step_gain_ns": int | None, "measured predicted": {_FIGURES: int},
    "critical_path": {
        "by_kind": _BY_KIND, "longest": [{"length_ns": int, "kind": str, **_PIECE}],
    },
    "ranks": [{f"rank device {_LENGTHS}": int, "measured replayed predicted": {_FIGURES: int}}],
    "interference": ({"ratio low high share": float, "compared": int}, None),
    "doubts": [{"kind text": str, "refuses": bool}], "findings?": [_FINDING],
}
_STAGES = {
    "schema": 1, "kind": "stages", "file verdict text": str, "steps dp_ranks": int,
    "recorded_step_ns replayed_step_ns ideal_step_ns": int, "slowdown": float,
    "explains": {"worker stages sequences transfers": float | None},
    "stages": [{"stage compute_ns": int, "explains": float | None}],
    "workers": [{"stage dp_rank": int, "explains": float | None}],
    "forward_backward_correlation stage_correlation": float | None, "notes": [str],
}
_SWEPT = {"schema": 1, "swept": str, "best": float | None, "points": [{"value": float, **_WHATIF}]}
_ON_PATH = {"path_ns": int, "gain_ns": int | None}
_CRITICAL_PATH = {
    "schema": 1, "run step": str, "rank start_ns end_ns length_ns wall_ns": int, "by_kind": _BY_KIND, "notes": [str],
    "can_tell all_ranks": bool, "replayed_ranks": [int], "apart_ns": int | None,
    "doubts": [{"kind text": str, "refuses": bool}],
    "by_rank": [{"rank": int | None, "path_ns": int}],
    "items": [{"kind": str, "name": str | None, **_ON_PATH}],
    "modules": [{"module": str, "compute_ns memory_ns transfer_ns host_ns other_ns": int, **_ON_PATH}],
    "path": [{"start_ns end_ns": int, "kind": str, **_PIECE}],
}

# memory, predict, advise

_HEAD = {"schema": 1, "kind": str, "assumptions": [str]}
_TRAINING = {
    "params gpu_memory_bytes gpus": int, "precision gpu": str,
    "shape": {
        "layers hidden heads kv_heads mlp vocab seq experts top_k shared_experts dense_layers dense_mlp": int,
        "head_width query_rank kv_rank rope_width": int, "gated": bool, "layers_of": object,
    },
}
_PLAN = {
    "strategy layout recompute": str, "degrees": {"dp tp cp pp ep": int}, "schedule": str | None,
    "zero shards virtual_stages micro_batch micro_batches recompute_every": int,
    "per_gpu_bytes host_bytes node_host_bytes": int,
    "sequence_parallel fits": bool,
    "per_gpu": {
        "parameters_bytes gradients_bytes optimizer_bytes gathered_bytes activation_bytes recompute_bytes": int,
    },
}
_REMEDIES = [{"option label": str, "step_s": float, "per_gpu_bytes host_bytes node_host_bytes": int}]
_RATES = {"samples_per_s tokens_per_s mfu bubble efficiency": float, "overlap": float | None}
_STRATEGY = {
    "strategy layout": str, "state_bytes": int, "per_gpu_bytes": {"none selective half full": int},
    "fits": {"none selective half full": bool},
}
_MEMORY = {
    **_HEAD, **_TRAINING, **_PLAN, "optimizer": str, "attention": str | None, "usable_share": float,
    "active_params model_state_bytes activation_bytes head_activation_bytes gpus_for_state": int,
    "micro_batches_in_flight ddp_wall_params": int, "strategies": [_STRATEGY],
    "bytes_per_parameter": {"parameters gradients optimizer total": float},
}
_MEMORY_OF_RECORDING = {
    **_HEAD, "params model_state_bytes activation_bytes per_gpu_bytes": float | None, "fits": bool | None,
    "strategy": str | None, "gpus": int,
    "recorded": {
        "run": str, "compared": [{"what": str, "expected_bytes measured_bytes": float | None}],
        "in_flight?": [{"rank": int, **_IN_FLIGHT}],
        "peak_allocated_bytes peak_reserved_bytes peak_process_bytes": int | None,
    },
}
_PREDICTED_STEP = {
    "step_s compute_s bubble_s optimizer_s communication_s exposed_s ideal_exposed_s serial_step_s ideal_step_s": float,
    "assumed_share_of_peak model_flops": float, **_RATES, "training_days?": float,
}
_EXPECTED = {
    "kind unknown": str | None, "runs sources inside": int | None,
    "median_error left_out_error low_s high_s": float | None,
}
_ROOFLINE = {
    "sent_bytes bytes_per_s ridge ccr ratio efficiency": float, "link regime advice": str,
    "critical_batch? crossover_bytes?": float | None,
}
_COMMUNICATION = {
    "what kind": str, "bytes calls sent_bytes call_s total_s": float, "ranks": int, "hides_under": str | None,
}
_SCALED = {
    "gpus batch": int, "fits": bool, "amdahl_ceiling gustafson_efficiency": float | None,
    "step_s compute_s communication_s exposed_s samples_per_s tokens_per_s mfu communication_share": float,
    "weak_efficiency strong_step_s strong_samples_per_s strong_efficiency": float | None,
}
_ALL_REDUCE = {
    "size_bytes ranks": int, "adding_s": float, "algorithms": [{"algorithm": str, "steps sent_bytes seconds": float}],
}
_PREDICT = {
    **_HEAD, **_TRAINING, **_PLAN, **_PREDICTED_STEP, "usable_bytes gpus_per_node batch tokens tried": int,
    "links": [{"name": str, "alpha_s bytes_per_s": float}], "communication": [_COMMUNICATION],
    "targets": [{"name goal": str, "value": float | None, "met": bool | None}],
    "candidates": [{**_PLAN, **_PREDICTED_STEP}], "scaling": [_SCALED], "roofline": [_ROOFLINE],
    "all_reduce": (_ALL_REDUCE, None), "attention": str | None, "expected": _EXPECTED, "remedies": _REMEDIES,
}
_WEAK_AND_STRONG = {
    f"{of}_serial_s {of}_overlapped_s {of}_samples_per_s {of}_efficiency": float | None for of in ("weak", "strong")
}
_PREDICT_OF_RECORDING = {
    **_HEAD, "recorded": str, "gpus": int, "samples": float | None,
    "step_s compute_s communication_s exposed_s rest_s serial_step_s ideal_step_s": float,
    "roofline": (
        {
            **_ROOFLINE, "flops peak_flops achieved_flops_per_s": float, "levels": [_ROOFLINE],
            "steps": [{"step": str, "flops_per_s": float}],
        },
        None,
    ),
    "scaling": [{"gpus": int, "communication_s amdahl_ceiling gustafson_efficiency": float | None, **_WEAK_AND_STRONG}],
}
_COST = {"formula algorithm regime": str, "latency_s transfer_s adding_s seconds": float}
_MESSAGE_COSTS = {
    "schema": 1, "kind": "message_costs", "size_bytes gamma_s_per_byte": float, "ranks gpus_per_node": int,
    "links": [{"name regime": str, "alpha_s bytes_per_s crossover_bytes": float}], "slowest_link": str,
    "collectives": [{**_COST, "kind": str, "hops share": float, "crossover_bytes": float | None}],
    "all_reduce": [{**_COST, "steps sent_bytes received_bytes busiest_bytes total_bytes": float}],
    "crossovers": [{"below above": str, "bytes": float}],
}
_QUESTION = {"name question numbers answer unit source": str, "note": str | None, "value limit": float | None}
_CHECK = {
    "name what status reason computed do source": str, "applies": bool, "gain_ns gain_bytes": int | None,
    "gain_share": float | None,
}
_CANDIDATE = {
    **_PLAN, **_RATES, "label loses command": str,
    "over_bytes step_ns compute_ns bubble_ns optimizer_ns exposed_ns": int,
}
_ADVICE = {**_HEAD, "path": [_QUESTION], "checks": [_CHECK]}
_ADVISE = {
    **_ADVICE, **_TRAINING, "usable_bytes gpus_per_node batch tokens tried": int, "attention": str | None,
    "links tied": [str], "simplest": str, "chosen": _CANDIDATE, "plan": (_CANDIDATE, None), "candidates": [_CANDIDATE],
    "expected": _EXPECTED, "remedies": _REMEDIES, "tied_within": float,
    "tree": {"strategy": str, "label": str | None, "fits": bool, "slower": float | None},
}
_PARTS = (
    "compute_ns optimizer_ns exposed_comm_ns exposed_transfer_ns exposed_wait_ns overlapped_ns exposed_memory_ns "
    "idle_ns"
)
_ADVISE_RECORDING = {
    **_ADVICE, "recorded": str, "mode": str | None, "ranks step_ns": int, "parts": {_PARTS: int | None},
    "findings": [_FINDING], "compute_findings": [_FINDING],
}

# explain

_MOVE = {
    "source target column into columns count": int, "label": str, "values": [float], "bytes": float,
    "adds between_nodes": bool,
}
_EXPLAINED_STEP = {
    "number": int, "phase title": str, "text": str | None, "messages": [_MOVE], "start end": float | None,
    "before after": [[{"label state": str, "values": [float], "parts": int}]],
    "work": [{"rank": int, "lane kind label": str, "start end": float}],
}
_EXPLAIN = {
    "schema": 1, "name title about checked": str, "unit": str | None, "ranks": int, "options": {str: float},
    "rows columns": [str], "steps": [_EXPLAINED_STEP],
    "cost": {
        "size_bytes seconds": float, "counted formula numbers": str, "sent_bytes received_bytes": [float],
        "messages": int, "links sentences": [str], "figures": {str: float},
    },
}

# links, bench, sweep

_LINE = {"alpha_s beta_s_per_byte": float}
_TIMED = {"bytes count calls": int, "median_s quarter_s three_quarters_s least_s algbw_gbps busbw_gbps": float}
_FIT = {
    **_LINE, "alpha_range_s beta_range_s_per_byte": [float], "deviation": float,
    "crossover_bytes crossover_s r2 r2_above r2_pieces worst": float | None,
    "pieces": [{**_LINE, "from_bytes to_bytes": float | None}],
}
_MEASURED_LINK = {
    **_LINE, "algorithm formula": str, "assumed": bool, "hops share": float, "bandwidth_gbps": float | None,
}
_MEASURED = {
    "counted": str, "bus_factor algbw_gbps busbw_gbps busbw_at_bytes": float, "fit": (_FIT, None),
    "link": (_MEASURED_LINK, None), "measured": [{**_TIMED, "fitted_s?": float}],
}
_ALGORITHM = {
    "formula": str, "hops share adds sent_share total_share": float, "deviation": float | None,
    "measured": [{**_TIMED, "predicted_s": float | None}],
}
_NEAREST = {"by name medium source remark": str, "bytes_per_s alpha_s bandwidth_ratio latency_ratio": float | None}
_LINKS = {
    "schema": 1, "kind": "links", "created? dptrace?": str, "command?": object, "backend statistic": str,
    "ranks nodes rounds": int, "seconds": float, "versions": {"torch nccl": str | None}, "gpus": [str | None],
    "machines": [{str: object}], "notes": [str], "busbw_gbps": float | None, "busbw_gbps_by_kind": {str: float},
    "nearest": (_NEAREST, None), "collectives": {str: _MEASURED},
    "algorithms?": {
        "ranks_per_node": int, "alpha_s beta_s_per_byte gamma_s_per_byte": float | None,
        "crossovers": [{"below above": str, "bytes": float}], "all_reduce": {str: _ALGORITHM}, "addition": [_TIMED],
    },
}
_POINT = {
    **get_type_hints(Point), "inference": [{str: object}], "x series": str, "cost_s": float | None,
    "best as_good": bool,
}
_SWEEP = {
    "schema": 1, "kind": "sweep", "model mode": str, "gpus epochs repeat": int, "device": str | None,
    "parameters steps_per_epoch": int | None, "versions data chosen onset": object, "swept reading notes": [str],
    "values": {str: [str]}, "points": [_POINT], "by_epoch": [{str: object}],
    "fit": (
        {
            **_LINE, "alpha_range_s beta_range_s_per_byte": [float], "r2": float | None, "source": str,
            "unsure": str | None,
        },
        None,
    ),
}

# watch

_SUSPECT = {
    "rank": int | None, "stage scope": str, "host": str | None, "ns_per_step ns_each gain_alone_ns": int,
    "share_of_steps": float, "first_step last_step": int,
}
_CHANGE = {"first_step before_ns after_ns": int, "stage": str | None}
_CAPTURE = {"number step": int, "why path finding state sentence": str}
_WATCH = {
    "schema": 1, "format": str, "created_unix_ns steps last_step profiled_steps ranks world_size hosts": int,
    "step_ns": {"median p95 mean worst worst_step": int},
    "stages": {str: {"own_ns waiting_ns exposed_ns": int, "device_ns": int | None}},
    "suspects": [_SUSPECT], "cannot_tell": str | None,
    "core_wait_ns": int, "change": (_CHANGE, type(None)), "drift_ns_per_1000_steps": int,
    "memory": ({"largest grown": int}, type(None)), "samples_per_s? tokens_per_s?": float | None,
    "captures": [_CAPTURE], "file_notes": [str], "lost_ranks": {str: int},
}

_WATCHED = {"path": str, "steps ranks mean_ns": int, "file_notes": [str]}
_WATCH_DIFF = {
    "schema": 1, "kind": "watch", "before after": _WATCHED,
    "figures": [{"figure": str, "before_ns after_ns change_ns": int}],
    "new_suspects gone_suspects": [_SUSPECT],
}

_WATCH_HISTORY = {
    "schema": 1, "kind": "watch",
    "runs": [{
        "run": str, "created_unix_ns steps ranks median_ns p95_ns mean_ns waiting_ns": int,
        "suspect": (_SUSPECT, type(None)), "cannot_tell": str | None, "file_notes": [str],
    }],
    "changes": [{"run": str, "index before_ns after_ns": int, "p": float}],
}

ANSWERS: dict[str, Any] = {
    "analyze": (_ANALYSIS, _HTA_COMPAT),
    "kernels": (_KERNELS, _HOST),
    "diff": (_DIFF, _WATCH_DIFF),
    "baseline": {"schema": 1, "folder": str, "baselines": [_BASELINE]},
    "history": ({"schema": 1, "series": [_SERIES], "worst_first": [str]}, _WATCH_HISTORY),
    "log": _LOGGED,
    "flight": _FLIGHT,
    "whatif": (_WHATIF, _SWEPT, _STAGES),
    "critical-path": _CRITICAL_PATH,
    "hta": {"schema": 1, "analysis": str, "tables": {str: [{str: object}]}, "notes": [str]},
    "bench": {"schema": 1, "rows": [Row], "notes": [str], "reading": {str: [str]}},
    "sweep": _SWEEP,
    "links": _LINKS,
    "predict": (_PREDICT, _PREDICT_OF_RECORDING, _MESSAGE_COSTS, _MEMORY, _MEMORY_OF_RECORDING),
    "advise": (_ADVISE, _ADVISE_RECORDING),
    "explain": _EXPLAIN,
    "doctor": {"schema": 1, **get_type_hints(Report), "selftest?": {**get_type_hints(SelfTest), "works": bool}},
    "watch": _WATCH,
    "cache": {"schema": 1, "cleared": bool, "folder": str, "traces trace_bytes pages page_bytes": int},
}
"""The shapes of the answers by verb; several in a tuple where options decide."""
