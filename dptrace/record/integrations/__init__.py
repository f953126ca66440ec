"""One line for the frameworks and profilers that people already use."""
