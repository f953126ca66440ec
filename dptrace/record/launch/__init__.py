"""The launcher: torchrun or another, signals, and the supervision of a job; only ``torchrun_agent`` imports torch."""
