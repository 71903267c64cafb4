"""What `python -m distill` does: its options, the rows, the chain from the teacher to the student, and the report."""
