"""Implementation of `python -m distill`: options, rows, the chain from the teacher to the student, and the report."""
