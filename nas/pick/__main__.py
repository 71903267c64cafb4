import sys

from nas.pick.command import main

sys.exit(main())
