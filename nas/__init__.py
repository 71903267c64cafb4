"""The search: command line, stages, evaluation of candidates, Ray Tune as driver and Optuna as memory."""
