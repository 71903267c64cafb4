"""Measurements behind the figures in results/. `python -m benchmarks --list` names them."""
