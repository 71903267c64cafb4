import sys

from nas.report.command import main

sys.exit(main())
