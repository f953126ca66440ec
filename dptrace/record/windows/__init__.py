"""The windows of steps that are recorded: those planned before training starts, and those asked for while it runs."""
