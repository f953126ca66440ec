"""Run an unchanged script of the user on each rank, and record it."""
