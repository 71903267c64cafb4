"""The search: its command line, its stages and the evaluation of candidates. Ray Tune runs the trials and Optuna
records them.
"""
