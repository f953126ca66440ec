"""Read the JSON traces that torch.profiler (Kineto) writes."""
