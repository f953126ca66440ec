"""Formulas with their source: what communication costs, from few numbers; knows neither files nor pictures."""
