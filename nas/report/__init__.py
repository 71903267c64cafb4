"""The report of a study: one page with figures."""
