"""Methods of a run, as base classes of it, one file per subject."""
