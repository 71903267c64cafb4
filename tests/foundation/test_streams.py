"""Output of libraries in C is kept out of stdout, through real pipes."""

import subprocess
import sys

CODE = """
import ctypes
import numpy, scipy.optimize
from foundation.streams import stdout_to_stderr

c = ctypes.CDLL(None)
print("before")
c.puts(b"C before")
with stdout_to_stderr():
    c.puts(b"C within")
    print("within")
    scipy.optimize.milp(numpy.ones(1), options={"disp": True})
try:
    with stdout_to_stderr():
        raise ValueError
except ValueError:
    pass
c.puts(b"C after")
c.fflush(None)
print("after")
"""


def test_what_c_prints_goes_to_stderr() -> None:
    result = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == ["before", "C before", "C after", "after"]
    assert {"C within", "within"} <= {*result.stderr.splitlines()} and "HiGHS" in result.stderr
