"""The final training of an architecture: what `train_final.py` runs."""
