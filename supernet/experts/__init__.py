"""Mixtures of experts made out of dense checkpoints: splitting, pruning and fusing."""
