"""`python -m nas.final`: the same as `train_final.py`, also from an installed wheel (`accelerate launch -m nas.final`)."""

import sys

from nas.final.command import main

if __name__ == "__main__":
    sys.exit(main())
