"""The Gantt chart of one run or two: its intervals, rows and labels; folders draw them as page and SVG, or add rows."""
