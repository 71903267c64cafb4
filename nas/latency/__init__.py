"""The latency of architectures, predicted from a table of measured steps."""
