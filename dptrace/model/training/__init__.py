"""What a training takes: parameters, memory, FLOPs, communication and time of a step, computed from a description."""
