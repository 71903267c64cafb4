"""How well samplers and stages search, and what a search costs beside training."""
