"""All ranks together: collectives matched across ranks, clocks compared, waiting told from transferring."""
