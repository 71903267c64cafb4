"""Tasks: task types and their rows, readers of data sets, encoding, and metrics."""
