"""Latency of architectures: measured steps, and the table that adds them up."""
