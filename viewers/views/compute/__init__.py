"""Views of what the devices compute: kernels and operators."""
