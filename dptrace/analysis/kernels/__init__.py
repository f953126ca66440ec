"""Which operator, module and annotation the time of a device belongs to, and tables of it."""
