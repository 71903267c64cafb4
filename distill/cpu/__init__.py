"""Optimisations for training on CPUs: memory allocation, dropout and attention."""
