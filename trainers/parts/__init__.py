"""What the trainers share, once: models with their data, and how a step updates the parameters."""
