"""`python -m nas.final` does what `train_final.py` does, for installed wheels and `accelerate launch -m nas.final`."""

import sys

from nas.final.command import main

if __name__ == "__main__":
    sys.exit(main())
