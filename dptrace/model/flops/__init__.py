"""FLOPs and bytes of an operator from the shapes and types of its inputs, as ``record_shapes`` records them."""
