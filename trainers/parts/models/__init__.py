"""The models that trainers train, each with its data, and their names."""
