"""Decoded events to columns: their times and names, and optionally details, memory and operators."""
