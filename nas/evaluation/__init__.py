"""The modes of evaluating candidates: trained, untrained, and as slices of the one-shot supernet."""
