"""Ways to train in parallel, carried out on a small network: data, sharded, tensor, pipeline and expert parallelism."""
