"""`python -m loadtests.scale`."""

import sys

from loadtests.scale.program import main

sys.exit(main())
