"""The student encoder, the supernet it inherits from, and the transformations of their weights."""
