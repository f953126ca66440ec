"""A run or two in the terminal: summary, comparison, and folders of tables, of replays and of the Gantt chart."""
