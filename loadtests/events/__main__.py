"""`python -m loadtests.events`."""

import sys

from loadtests.events.program import main

sys.exit(main())
