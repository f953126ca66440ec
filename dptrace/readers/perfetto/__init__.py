"""Read Perfetto's binary traces (``.pftrace``)."""
