"""Ray: the cluster, the trials on it, and why they fail."""
