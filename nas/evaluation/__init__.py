"""How candidates are evaluated: trained, untrained, or with the weights of the one-shot supernet."""
