"""``python -m knockout``: the command ``knockout``."""

import sys

from knockout.cli import main

sys.exit(main())
