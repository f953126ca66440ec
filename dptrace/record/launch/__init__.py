"""The launcher: torchrun and Slurm, signals, and the supervision of a job; imports torch only in ``torchrun_agent``."""
