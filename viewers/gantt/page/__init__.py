"""The interactive page of a Gantt chart, in one file or fed by a local server."""
