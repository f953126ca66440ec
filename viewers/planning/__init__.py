"""Plans of trainings as tables, charts and pages."""
