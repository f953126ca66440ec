"""Algorithms of parallel training, carried out on small NumPy arrays and recorded step by step."""
