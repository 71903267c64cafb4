"""Train a searched architecture, and save it as a Hugging Face checkpoint: see `nas.final.command`."""

import sys

from nas.final.command import main

if __name__ == "__main__":
    sys.exit(main())
