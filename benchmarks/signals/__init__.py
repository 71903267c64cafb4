"""Which cheap measurements predict the score of a fully trained candidate."""
