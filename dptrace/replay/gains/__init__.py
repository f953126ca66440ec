"""What findings would gain: a counterfactual for each, replayed."""
