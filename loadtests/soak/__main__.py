"""`python -m loadtests.soak`."""

import sys

from loadtests.soak.program import main

sys.exit(main())
