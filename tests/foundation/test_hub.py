"""A hub that cannot be reached: commands that are given a name say so within seconds."""

import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.checkout import ROOT


def test_a_hub_that_does_not_answer(tmp_path: Path) -> None:
    """The connection is made, and nothing comes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        given = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0", "PYTHONPATH": str(ROOT)}
        result = subprocess.run(
            [sys.executable, "-m", "nas.probe", "bert-bse-uncased"],
            env=os.environ | given,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert result.returncode == 2
    assert result.stderr.startswith(
        f"nas.probe: no model at 'bert-bse-uncased': there is no such folder, and {address} cannot be reached ("
    )
    assert result.stderr.count("\n") == 1  # the libraries print a line for each time they try again
