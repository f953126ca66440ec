"""The pictures of ``dptrace view --view``, one per file, in folders by subject; their names and their registry."""
