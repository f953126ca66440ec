"""What-ifs and critical paths in the terminal."""
