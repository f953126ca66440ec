"""The Gantt chart in the terminal: its rows of cells, the look of a cell, the picture, and the figures below."""
