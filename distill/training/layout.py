"""The names of the files in the folder of a trained model."""

CONFIG_FILE, ARCHITECTURE_FILE, METRICS_FILE = "config.json", "architecture.json", "metrics.json"
# The options of a run, which must be the same when it is resumed.
OPTIONS_FILE = "options.json"
# The subfolder with the state of an unfinished training, which is removed at its end.
STATE = "state"
