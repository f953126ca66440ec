"""What several trainers share: models with their data, ways to split them, and the optimizer step."""
