"""The critical path of a step on the Gantt chart."""
