"""The verbs that record a run, and what only they need."""
