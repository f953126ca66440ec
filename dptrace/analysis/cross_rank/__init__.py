"""Figures across ranks: clocks, wait and transfer, stragglers, latency, buckets, bubbles."""
