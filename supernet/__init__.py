"""The student encoder, the supernet it inherits from, and the transformations of their weights."""

from foundation.packages import check_packages

DISTRIBUTION = "ffn-nas"

check_packages(__name__)
