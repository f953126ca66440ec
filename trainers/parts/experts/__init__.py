"""A mixture of experts: which tokens each expert gets, how they travel, and what the experts compute."""
