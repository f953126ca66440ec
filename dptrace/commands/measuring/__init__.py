"""The verbs that train or measure in order to compare: benchmarks, sweeps and links."""
