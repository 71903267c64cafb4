"""The defaults that commands, configurations and Python functions share."""

# The columns of a sentence and of its class or number in rows of one's own.
TEXT, LABEL = "sentence", "label"
# Tokens of a row.
MAX_LENGTH = 128
OBJECTIVE = "kd"
# Of the training of a student.
STEPS, BATCH_SIZE, LEARNING_RATE = 1000, 32, 5e-5
