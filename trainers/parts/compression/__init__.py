"""Gradients in fewer bytes: encodings, and the hook of DDP that averages them."""
