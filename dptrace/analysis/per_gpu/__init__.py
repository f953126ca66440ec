"""Figures of one GPU: the split of each step, and why the GPU idled."""
