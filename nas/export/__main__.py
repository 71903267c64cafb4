"""`python -m nas.export`, which is also installed as `ffn-export`."""

import sys

from nas.export.command import main

if __name__ == "__main__":
    sys.exit(main())
