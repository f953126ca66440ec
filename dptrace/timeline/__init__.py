"""Columns of events to classified device intervals: launches, phases, steps, collectives."""
