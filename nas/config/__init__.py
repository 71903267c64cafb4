"""The configuration of a study: its schema, and the presets."""
