"""`python -m nas.compress`, which is also installed as `ffn-compress`."""

import sys

from nas.compress.command import main

if __name__ == "__main__":
    sys.exit(main())
