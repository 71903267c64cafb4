"""`python -m nas.final`, which an installed wheel has too, is `train_final.py`; so is `accelerate launch -m nas.final`."""

import sys

from nas.final.command import main

if __name__ == "__main__":
    sys.exit(main())
