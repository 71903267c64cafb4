"""Experts from dense feed-forward networks: initialization, splitting a model into experts, and removing rarely used
ones. The command is `python -m supernet.experts`.
"""

from foundation.errors import UserError


class ExpertsError(UserError, ValueError):
    """The command's options, the checkpoint or the rows are invalid or do not fit together."""
