"""Collectives, carried out message by message: all-reduce by five algorithms, and the other collectives."""
