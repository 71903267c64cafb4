import sys

from nas.compare.command import main

sys.exit(main())
