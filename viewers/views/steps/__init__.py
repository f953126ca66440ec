"""Views of where the time of the steps goes, by rank and step, and what causes it."""
