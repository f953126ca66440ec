"""A lane of memory below the rows of each device on the Gantt page."""
