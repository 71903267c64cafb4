"""What makes training fast on processors: memory allocation, dropout and attention."""
