"""Changes of the settings of checkpoints."""

import json
from pathlib import Path


def changed(file: Path, **settings: object) -> None:
    """Change settings in a JSON file."""
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))
