"""A model cut into stages, the order of their forwards and backwards, and the activations that they hold."""
