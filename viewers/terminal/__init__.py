"""Tables and the Gantt chart in the terminal."""
