"""The search: its command line, its stages and the evaluation of candidates. Ray Tune runs the trials and Optuna
records them.
"""

from foundation.packages import check_packages

DISTRIBUTION = "ffn-nas"

check_packages(__name__)
