"""How the cost of a search grows, and what it is at the papers' scale."""
