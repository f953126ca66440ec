"""What makes compute slower than it could be: one detector per file, each with cost, cause and advice."""
