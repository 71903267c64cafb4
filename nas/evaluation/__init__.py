"""The evaluation of a candidate: the modes (trained, untrained, one-shot) are a table of evaluators."""
