"""The launcher: torchrun, the run folder, failures and run.json; imports torch only in ``torchrun_agent``."""
