"""Export a run to Perfetto and Chrome traces."""
