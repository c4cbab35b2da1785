"""`python -m loadtests.fleet`."""

import sys

from loadtests.fleet.program import main

sys.exit(main())
