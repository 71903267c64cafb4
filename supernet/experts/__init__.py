"""Experts made out of a dense feed-forward network: how they start, how a model is split into them, and how the ones
that hardly any token goes to are removed. `python -m supernet.experts` is the command.
"""

from search_spaces.errors import UserError


class ExpertsError(UserError, ValueError):
    """What is asked for cannot be done with this checkpoint or these rows."""
