"""The choice of one trial of a study."""
