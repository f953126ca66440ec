"""The launcher: torchrun, the run folder, failures, run.json."""
