"""A smaller student in a minute or two, without a search."""
