"""Architectures side by side: layers, costs, and paired differences."""
