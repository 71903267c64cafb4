"""The figures of a report, each drawn by one function from plain values."""
