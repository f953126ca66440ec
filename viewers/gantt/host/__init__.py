"""What the host did: the rows of CPU calls below each GPU, and the calls that launched its kernels."""
