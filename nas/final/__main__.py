"""`python -m nas.final` is `train_final.py`, for installed wheels and `accelerate launch -m nas.final`."""

import sys

from nas.final.command import main

if __name__ == "__main__":
    sys.exit(main())
