"""Run a dependency graph forward in time, as recorded or changed, and read the figures of its steps."""
