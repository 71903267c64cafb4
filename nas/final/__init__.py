"""The final training of an architecture, which `train_final.py` runs."""
