"""How fast candidates train and run."""
