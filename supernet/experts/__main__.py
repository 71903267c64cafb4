"""`python -m supernet.experts`."""

import sys

from supernet.experts.command import main

if __name__ == "__main__":
    sys.exit(main())
