"""The names of all views, each with what it shows: help lists them without importing the views.

A view is a line here, and a module of its name in this package that defines ``VIEW``.
"""

from __future__ import annotations

__all__ = ["NAMES"]

NAMES = {
    "gantt": "phases, compute and communication of each GPU over time",
    "summary": "the parts of each rank's mean step",
    "breakdown": "the parts of each step of each rank",
    "heatmap": "ranks by steps: wall time, exposed share, idle share",
    "communication": "each kind of collective: exposed and overlapped",
    "bandwidth": "each collective's bandwidth by its size, with the fitted line",
    "buckets": "how long each DDP bucket, or like collectives, took",
    "kernels": "the kernels that take most time, by phase",
    "layers": "when each layer's forward, backward and collectives ran in a step",
    "idle": "why each rank was idle",
    "memory": "allocated and reserved memory of each device over time, by kind",
    "pipeline": "each stage's forward and backward of each micro-batch, and the bubble",
    "roofline": "operators by arithmetic intensity and FLOP/s, under their GPU's limits",
    "findings": "what matters most, by what it costs, and what to do",
}
