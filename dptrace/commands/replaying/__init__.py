"""The verbs that replay a run."""
