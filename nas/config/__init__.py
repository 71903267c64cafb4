"""The configuration of a study: its schema, its presets, and how they are loaded."""
