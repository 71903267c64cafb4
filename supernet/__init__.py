"""The student encoder, the supernet it inherits from, and what happens to their weights."""
