"""Changes of a run beyond factors: its links, its launches, its gradients' messages."""
