"""Views of collectives: their exposed and overlapped time, their bandwidth, their buckets."""
