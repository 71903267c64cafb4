"""How much memory a search needs."""
