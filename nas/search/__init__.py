"""A search: the command, its options, the value that it builds, and what runs it."""
