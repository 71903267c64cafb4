"""Tests of foundation.processes."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import os
from foundation.processes import in_processes

def process(item):
    return item, os.getpid()

found = list(in_processes(process, range(8), {processes}))
assert [item for item, _ in found] == [*range(8)]
print(os.getpid() in {{number for _, number in found}})
"""


def test_results_are_in_order_and_a_script_need_not_guard_its_main_part(tmp_path: Path) -> None:
    for processes, here in ((1, "True"), (2, "False")):
        (tmp_path / "script.py").write_text(SCRIPT.format(processes=processes), encoding="utf-8")
        found = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, check=True)
        assert found.stdout.strip() == here
