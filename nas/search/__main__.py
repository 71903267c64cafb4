"""`python -m nas.search`."""

import sys

from nas.search.command import main

if __name__ == "__main__":
    sys.exit(main())
