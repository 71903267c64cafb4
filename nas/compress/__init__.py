"""A smaller student in a few minutes, without a search."""
