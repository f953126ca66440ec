"""The Gantt chart: its data, page, SVG and server, for one run or two."""
